"""Admission: Kubernetes' own plugins, policies in CEL, webhooks over HTTPS."""

from __future__ import annotations

import base64
import http.server
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tinykube.apiserver import ApiFailure, User, certificates
from tinykube.apiserver.policies import compile_policy

JANE = User("jane", ("system:authenticated",))
CONFIG = {"metadata": {"name": "c"}, "data": {"a": "1"}}
ON_CONFIGMAPS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}


async def test_pods_get_priority_account_and_tolerations(cluster):
    await cluster.create("priorityclasses", {"metadata": {"name": "high"}, "value": 100, "preemptionPolicy": "Never"})
    await cluster.create("priorityclasses", {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True})
    high = (await cluster.pod("high", priorityClassName="high"))["spec"]
    assert (high["priority"], high["preemptionPolicy"], high["serviceAccountName"]) == (100, "Never", "default")
    assert {(t["key"], t["tolerationSeconds"]) for t in high["tolerations"]} == {
        ("node.kubernetes.io/not-ready", 300),
        ("node.kubernetes.io/unreachable", 300),
    }
    usual = (await cluster.pod("usual", tolerations=[{"operator": "Exists"}]))["spec"]
    assert (usual["priority"], usual["priorityClassName"], len(usual["tolerations"])) == (7, "usual", 1)


async def test_only_one_priority_class_is_the_default(cluster):
    one = {"metadata": {"name": "one"}, "value": 1, "globalDefault": True}
    two = {"metadata": {"name": "two"}, "value": 2}
    await cluster.create("priorityclasses", one)
    await cluster.create("priorityclasses", two)
    relabel = {"metadata": {"labels": {"a": "b"}}, "globalDefault": True}
    await cluster.registry.patch("priorityclasses", None, "one", relabel, "merge")
    for write in (
        cluster.create("priorityclasses", {**one, "metadata": {"name": "three"}}),
        cluster.registry.patch("priorityclasses", None, "two", {"globalDefault": True}, "merge"),
    ):
        with pytest.raises(ApiFailure, match="PriorityClass one is already marked as default") as refused:
            await write
        assert refused.value.status == 403
    assert (await cluster.pod())["spec"]["priorityClassName"] == "one"


async def test_ingresses_that_name_no_class_get_the_newest_default_one(cluster):
    async def ingress(name: str, notes: dict[str, str] | None = None, **spec: Any) -> Any:
        rule = {"service": {"name": "s", "port": {"number": 80}}}
        body = {"metadata": {"name": name, "annotations": notes or {}}, "spec": {"defaultBackend": rule, **spec}}
        return (await cluster.create("ingresses", body))["spec"].get("ingressClassName")

    async def ingress_class(name: str, default: str) -> None:
        notes = {"ingressclass.kubernetes.io/is-default-class": default}
        spec = {"controller": "example.com/x"}
        await cluster.create("ingressclasses", {"metadata": {"name": name, "annotations": notes}, "spec": spec})

    await ingress_class("plain", "false")
    assert await ingress("before") is None
    await ingress_class("b", "true")
    await ingress_class("a", "true")
    assert await ingress("first") == "a"
    assert await ingress("other", ingressClassName="plain") == "plain"
    assert await ingress("old", {"kubernetes.io/ingress.class": "plain"}) is None
    cluster.time += 10
    await ingress_class("z", "true")
    assert await ingress("newest") == "z"


async def test_what_a_pod_names_must_be_there(cluster):
    for spec, why in (
        ({"priorityClassName": "nosuch"}, "no PriorityClass with name nosuch was found"),
        ({"serviceAccountName": "nosuch"}, 'serviceaccount "nosuch" not found'),
        ({"runtimeClassName": "nosuch"}, 'RuntimeClass "nosuch" not found'),
    ):
        with pytest.raises(ApiFailure, match=why) as refused:
            await cluster.pod(**spec)
        assert refused.value.status == 403
    runtime = {"metadata": {"name": "nvidia"}, "handler": "nvidia", "scheduling": {"nodeSelector": {"gpu": "true"}}}
    await cluster.create("runtimeclasses", runtime)
    assert (await cluster.pod(runtimeClassName="nvidia"))["spec"]["nodeSelector"] == {"gpu": "true"}


NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taints", "expected"),
    [
        (None, [NOT_READY]),
        ([{"key": "gpu", "effect": "NoSchedule"}], [{"key": "gpu", "effect": "NoSchedule"}, NOT_READY]),
        ([{**NOT_READY, "value": "own"}], [{**NOT_READY, "value": "own"}]),
        ([{**NOT_READY, "effect": "NoExecute"}], [{**NOT_READY, "effect": "NoExecute"}, NOT_READY]),
    ],
)
async def test_a_new_node_has_the_taint_not_ready_once(cluster, taints, expected):
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    made = await cluster.create("nodes", {"metadata": {"name": "n"}, "spec": {"taints": taints}, "status": ready})
    assert made["spec"]["taints"] == expected


async def test_a_taint_that_was_taken_off_a_node_does_not_come_back(cluster):
    made = await cluster.create("nodes", {"metadata": {"name": "n"}})
    assert made["spec"]["taints"] == [NOT_READY]
    kept = await cluster.registry.patch("nodes", None, "n", {"spec": {"taints": None}}, "merge")
    assert "taints" not in kept["spec"]
    kept = await cluster.registry.patch("nodes", None, "n", {"metadata": {"labels": {"a": "b"}}}, "merge")
    assert "taints" not in kept["spec"]


def policy(*validations: dict[str, str], **spec: Any) -> dict[str, Any]:
    match = {"resourceRules": [ON_CONFIGMAPS]}
    return {"metadata": {"name": "p"}, "spec": {"matchConstraints": match, "validations": list(validations), **spec}}


def binding(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"], **spec}}


async def enforce(cluster: Any, made: dict[str, Any], **bound: Any) -> None:
    await cluster.create("validatingadmissionpolicies", made)
    await cluster.create("validatingadmissionpolicybindings", binding(**bound))


async def test_a_policy_sees_object_old_object_and_user(cluster):
    rule = {
        "expression": "oldObject == null || object.data.a == oldObject.data.a || request.userInfo.username == 'root'",
        "messageExpression": "'a is fixed at ' + oldObject.data.a",
        "reason": "Forbidden",
    }
    await enforce(cluster, policy(rule))
    await cluster.create("configmaps", CONFIG)
    with pytest.raises(ApiFailure) as refused:
        await cluster.registry.patch("configmaps", "default", "c", {"data": {"a": "2"}}, "merge", user=JANE)
    assert str(refused.value) == (
        "configmaps \"c\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: a is fixed at 1"
    )
    assert refused.value.status == 403
    await cluster.registry.patch("configmaps", "default", "c", {"data": {"a": "2"}}, "merge", user=User("root"))


async def test_a_policy_has_variables_conditions_and_parameters(cluster):
    made = policy(
        {"expression": "variables.size <= int(params.data.most)"},
        variables=[{"name": "size", "expression": "size(object.data)"}],
        matchConditions=[{"name": "not-exempt", "expression": "!object.metadata.name.startsWith('exempt')"}],
        paramKind={"apiVersion": "v1", "kind": "ConfigMap"},
    )
    await cluster.create("configmaps", {"metadata": {"name": "limits"}, "data": {"most": "1"}})
    await enforce(cluster, made, paramRef={"name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny"})
    await cluster.create("configmaps", CONFIG)
    large = {"a": "1", "b": "2"}
    with pytest.raises(ApiFailure, match=r"failed expression: variables\.size <= int") as refused:
        await cluster.create("configmaps", {"metadata": {"name": "large"}, "data": large})
    assert (refused.value.status, refused.value.reason) == (422, "Invalid")
    await cluster.create("configmaps", {"metadata": {"name": "exempt-1"}, "data": large})


async def test_a_policy_applies_to_configurations_of_webhooks_and_not_to_policies(cluster):
    """As on a real server; a policy that refused its own repair would stay for ever."""
    everything = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["*"]}
    await cluster.create("validatingwebhookconfigurations", {"metadata": {"name": "w"}, "webhooks": []})
    await enforce(cluster, policy({"expression": "false"}, matchConstraints={"resourceRules": [everything]}))
    label = {"metadata": {"labels": {"a": "b"}}}
    with pytest.raises(ApiFailure, match="'p' with binding 'b' denied request"):
        await cluster.registry.patch("validatingwebhookconfigurations", None, "w", label, "merge")
    for plural, name in (("validatingadmissionpolicies", "p"), ("validatingadmissionpolicybindings", "b")):
        await cluster.registry.patch(plural, None, name, label, "merge")


async def test_a_policy_that_does_not_compile_is_refused(cluster):
    with pytest.raises(ApiFailure, match=r"spec.validations\[0\].expression.*compilation failed"):
        await cluster.create("validatingadmissionpolicies", policy({"expression": "object.("}))


def test_a_policy_is_compiled_once_however_many_others_are_written_after_it():
    made = policy({"expression": "object.data.a == '1'", "messageExpression": "'a is ' + object.data.a"})
    first, again = compile_policy(made), compile_policy(made)
    assert again.validations[0].program is first.validations[0].program


async def test_an_expression_that_fails_denies_unless_failures_are_ignored(cluster):
    await enforce(cluster, policy({"expression": "object.data.nosuch == 'x'"}))
    with pytest.raises(ApiFailure, match="resulted in error: no such key: nosuch"):
        await cluster.create("configmaps", CONFIG)
    ignore = {"spec": {"failurePolicy": "Ignore"}}
    await cluster.registry.patch("validatingadmissionpolicies", None, "p", ignore, "merge")
    await cluster.create("configmaps", CONFIG)


Decide = Callable[[dict[str, Any]], dict[str, Any]]


class Hook:
    """An HTTPS server that answers reviews; `decide` makes a response of a request."""

    def __init__(self, directory: Any) -> None:
        paths = certificates.ensure(directory)
        self.decide: Decide = lambda request: {"allowed": True}
        self.requests: list[dict[str, Any]] = []
        self.connections = 0
        self.sockets: list[ssl.SSLSocket] = []
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["content-length"])))
                hook.requests.append(review["request"])
                response = {"uid": review["request"]["uid"], **hook.decide(review["request"])}
                body = json.dumps({**review, "request": None, "response": response}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def setup(self) -> None:
                super().setup()
                hook.connections += 1
                hook.sockets.append(self.connection)

            def log_message(self, *_: Any) -> None:
                return None

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(paths.certificate, paths.key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.bundle = base64.b64encode(paths.authority.read_bytes()).decode()
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def configuration(self, **spec: Any) -> dict[str, Any]:
        url = f"https://localhost:{self.server.server_port}/check"
        hook = {
            "name": "hook.example.com",
            "clientConfig": {"url": url, "caBundle": self.bundle},
            "rules": [{**ON_CONFIGMAPS, "operations": ["CREATE"]}],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            **spec,
        }
        return {"metadata": {"name": "hooks"}, "webhooks": [hook]}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def hook(tmp_path) -> Iterator[Hook]:
    made = Hook(tmp_path)
    yield made
    made.close()


def patch(*operations: dict[str, Any]) -> dict[str, Any]:
    data = base64.b64encode(json.dumps(operations).encode()).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": data}


async def test_a_mutating_webhook_changes_what_is_stored(cluster, hook):
    hook.decide = lambda request: patch({"op": "add", "path": "/data/added", "value": request["userInfo"]["username"]})
    await cluster.create("mutatingwebhookconfigurations", hook.configuration())
    made = await cluster.create("configmaps", CONFIG, user=JANE)
    assert made["data"] == {"a": "1", "added": "jane"}
    (asked,) = hook.requests
    assert (asked["operation"], asked["namespace"], asked["resource"]["resource"]) == (
        "CREATE",
        "default",
        "configmaps",
    )
    assert asked["object"]["data"] == {"a": "1"} and asked["oldObject"] is None
    await cluster.create("secrets", {"metadata": {"name": "s"}})
    assert len(hook.requests) == 1
    await cluster.create("configmaps", {**CONFIG, "metadata": {"name": "next"}})
    assert (len(hook.requests), hook.connections) == (2, 1)


async def test_a_connection_that_was_closed_meanwhile_is_replaced(cluster, hook):
    await cluster.create("validatingwebhookconfigurations", hook.configuration())
    await cluster.create("configmaps", CONFIG)
    hook.sockets[0].shutdown(socket.SHUT_RDWR)
    await cluster.create("configmaps", {**CONFIG, "metadata": {"name": "next"}})
    assert hook.connections == 2


async def test_a_validating_webhook_says_no_in_its_words(cluster, hook):
    hook.decide = lambda request: {"allowed": False, "status": {"message": "not today", "code": 422}}
    await cluster.create("validatingwebhookconfigurations", hook.configuration())
    with pytest.raises(ApiFailure) as refused:
        await cluster.create("configmaps", CONFIG)
    assert str(refused.value) == 'admission webhook "hook.example.com" denied the request: not today'
    assert refused.value.status == 422


async def test_selectors_and_conditions_spare_requests(cluster, hook):
    hook.decide = lambda request: {"allowed": False}
    only = {
        "objectSelector": {"matchLabels": {"check": "yes"}},
        "matchConditions": [{"name": "n", "expression": "has(object.data)"}],
    }
    await cluster.create("validatingwebhookconfigurations", hook.configuration(**only))
    await cluster.create("configmaps", CONFIG)
    await cluster.create("configmaps", {"metadata": {"name": "no-data", "labels": {"check": "yes"}}})
    with pytest.raises(ApiFailure, match="without explanation"):
        await cluster.create(
            "configmaps", {"metadata": {"name": "seen", "labels": {"check": "yes"}}, "data": {"a": "1"}}
        )


async def test_a_webhook_that_is_not_there_fails_or_is_ignored(cluster, hook):
    configuration = hook.configuration(clientConfig={"service": {"namespace": "default", "name": "nosuch"}})
    await cluster.create("validatingwebhookconfigurations", configuration)
    with pytest.raises(ApiFailure, match=r'calling webhook "hook\.example\.com": no endpoints available') as failed:
        await cluster.create("configmaps", CONFIG)
    assert failed.value.status == 500
    ignore = [{"op": "add", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]
    await cluster.registry.patch("validatingwebhookconfigurations", None, "hooks", ignore, "json")
    await cluster.create("configmaps", CONFIG)


async def test_a_webhook_behind_a_service_is_found(cluster, hook):
    port = {"port": 443, "targetPort": "https"}
    await cluster.create(
        "services", {"metadata": {"name": "kubernetes"}, "spec": {"selector": {"a": "b"}, "ports": [port]}}
    )
    ports = [{"name": "https", "containerPort": hook.server.server_port}]
    body = {
        "metadata": {"name": "p", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i", "ports": ports}]},
    }
    await cluster.create("pods", body)
    status = {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    await cluster.registry.patch("pods", "default", "p", {"status": status}, "merge", subresource="status")
    # The certificate is good for kubernetes.default.svc, which is the name that the API server must ask for.
    client = {"service": {"namespace": "default", "name": "kubernetes", "path": "/x"}, "caBundle": hook.bundle}
    await cluster.create("validatingwebhookconfigurations", hook.configuration(clientConfig=client))
    await cluster.create("configmaps", CONFIG)
    assert len(hook.requests) == 1
