"""Policies and webhooks that refuse and change."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tinykube.apiserver import certificates

GROUP = "/apis/admissionregistration.k8s.io/v1"


def only_here(here):
    return {"matchLabels": {"kubernetes.io/metadata.name": here.namespace}}


def until_refused(here, name="no"):
    """A real server learns of policies and webhooks from a watch."""
    for _ in range(2000):
        answer = here.create(
            here.core("configmaps"), {"metadata": {"name": name}, "data": {"forbidden": "1"}}, dryRun="All"
        )
        if answer.status != 201:
            return answer
    raise AssertionError("it is never refused")


def policy(here, name, **spec):
    rules = [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}
    ]
    return {"metadata": {"name": here.name(name)}, "spec": {"matchConstraints": {"resourceRules": rules}, **spec}}


def bind(here, name, *actions, **spec):
    bound = {
        "policyName": here.name(name),
        "validationActions": list(actions),
        "matchResources": {"namespaceSelector": only_here(here)},
    }
    here.made(
        f"{GROUP}/validatingadmissionpolicybindings", {"metadata": {"name": here.name(name)}, "spec": {**bound, **spec}}
    )


def test_policies(here):
    data = [{"name": "data", "expression": "has(object.data) ? object.data : {}"}]
    validations = [
        {
            "expression": "!('forbidden' in variables.data)",
            "messageExpression": "'not as ' + request.operation",
            "reason": "Forbidden",
        },
        {"expression": "size(variables.data) < 3"},
        {"expression": "object.metadata.name != 'plain'", "message": "not plain"},
    ]
    path = f"{GROUP}/validatingadmissionpolicies"
    here.see("policy", here.create(path, policy(here, "strict", variables=data, validations=validations)).status)
    bind(here, "strict", "Deny")
    here.see("forbidden", until_refused(here))
    configs = here.core("configmaps")
    here.see(
        "by the expression", here.create(configs, {"metadata": {"name": "a"}, "data": {"a": "1", "b": "2", "c": "3"}})
    )
    here.see("by the message", here.create(configs, {"metadata": {"name": "plain"}}))
    here.see("allowed", here.create(configs, {"metadata": {"name": "a"}}).status)
    here.see("an update", here.patch(f"{configs}/a", {"data": {"forbidden": "1"}}))


def test_policies_that_warn(here):
    path = f"{GROUP}/validatingadmissionpolicies"
    here.made(
        path, policy(here, "first", validations=[{"expression": "!('forbidden' in object.data)", "message": "no"}])
    )
    bind(here, "first", "Deny")
    until_refused(here)
    here.made(path, policy(here, "mild", validations=[{"expression": "false", "message": "it is frowned upon"}]))
    bind(here, "mild", "Warn")
    for number in range(2000):
        answer = here.create(here.core("configmaps"), {"metadata": {"name": f"w{number}"}, "data": {}}, dryRun="All")
        if "warning" in answer.headers:
            break
    here.see("warned", [answer.status, answer.headers.get("warning")])


def test_policies_that_ask_the_authorizer(here):
    account = f"authorizer.serviceAccount('{here.namespace}', 'default').group('').resource('pods')"
    asked = {
        "administrator": "authorizer.group('').resource('nodes').check('patch').allowed()",
        "path": "authorizer.path('/healthz').check('get').allowed()",
        "account": f"{account}.namespace('{here.namespace}').check('delete').allowed()",
        "subresource": f"{account}.subresource('log').name('p').check('get').allowed()",
        "errors": f"!{account}.check('get').errored()",
    }
    data = [{"name": "data", "expression": "has(object.data) ? object.data : {}"}]
    validations = [{"expression": "!('forbidden' in variables.data)", "message": "no"}]
    validations += [
        {"expression": f"!('{name}' in variables.data) || {question}", "message": f"{name} may not"}
        for name, question in asked.items()
    ]
    here.made(f"{GROUP}/validatingadmissionpolicies", policy(here, "asks", variables=data, validations=validations))
    bind(here, "asks", "Deny")
    until_refused(here)
    for name in asked:
        body = {"metadata": {"name": name}, "data": {name: "1"}}
        answer = here.create(here.core("configmaps"), body, dryRun="All")
        here.see(name, [answer.status, answer.body.get("message")])


WRONG = (
    ("no parse", {"validations": [{"expression": "object >"}]}),
    ("not a bool", {"validations": [{"expression": "1"}]}),
    ("unknown variable", {"validations": [{"expression": "variables.nosuch"}]}),
    ("unknown name", {"validations": [{"expression": "nosuch == 1"}]}),
    ("nothing", {}),
)


def test_wrong_policies(here):
    for what, spec in WRONG:
        here.see(what, here.create(f"{GROUP}/validatingadmissionpolicies", policy(here, "wrong", **spec), dryRun="All"))


class Hook(BaseHTTPRequestHandler):
    """Refuses, changes or fails by its path; keeps what it was asked."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(review)
        request = review["request"]
        data = (request.get("object") or {}).get("data") or {}
        response = {"uid": request["uid"], "allowed": True}
        what = self.path.partition("?")[0]
        if what == "/refuse" and "forbidden" in data:
            response |= {"allowed": False, "status": {"message": "not here", "code": 418, "reason": "Teapot"}}
        elif what == "/bare" and "forbidden" in data:
            response |= {"allowed": False}
        elif what == "/warn":
            response |= {"warnings": ["take care"]}
        elif what == "/change":
            patch = [{"op": "add", "path": "/data", "value": {**data, "changed": "1"}}]
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        body = json.dumps({**review, "request": None, "response": response}).encode()
        status = 500 if what == "/fail" and "forbidden" in data else 200
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hook(here, tmp_path):
    """Its URL, its authority and what it was asked."""
    import ssl

    if "127.0.0.1" not in here.access.url:
        pytest.skip("the API server cannot call back to this machine")
    paths = certificates.ensure(tmp_path, ("127.0.0.1",))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    server.daemon_threads = True
    server.asked = []
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(paths.certificate, paths.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    server.url = f"https://127.0.0.1:{server.server_address[1]}"
    here.normal.names[server.url] = "HOOK"
    server.authority = base64.b64encode(paths.authority.read_bytes()).decode()
    yield server
    server.shutdown()
    thread.join(10)
    server.server_close()


def configuration(here, hook, path, **more):
    return {
        "metadata": {"name": here.name("hook")},
        "webhooks": [
            {
                "name": "hook.example.com",
                "clientConfig": {"url": f"{hook.url}/{path}", "caBundle": hook.authority},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}],
                "namespaceSelector": only_here(here),
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                **more,
            }
        ],
    }


def last_asked(hook):
    """The last request about an object of the test: a controller makes a ConfigMap in each namespace."""
    return next(one["request"] for one in reversed(hook.asked) if one["request"]["name"] != "kube-root-ca.crt")


@pytest.mark.parametrize("path", ["refuse", "bare", "fail"])
def test_webhooks_that_refuse(here, hook, path):
    made = here.made(f"{GROUP}/validatingwebhookconfigurations", configuration(here, hook, path))
    made["webhooks"][0]["clientConfig"] = sorted(made["webhooks"][0]["clientConfig"])
    here.see("configuration", made)
    here.see("refused", until_refused(here))
    asked = last_asked(hook)
    here.see("asked", {**{k: v for k, v in asked.items() if k != "object"}, "userInfo": sorted(asked["userInfo"])})
    here.see("about", asked["object"])
    if path == "refuse":
        here.made(here.core("configmaps"), {"metadata": {"name": "a"}})
        here.see("an update", here.patch(here.core("configmaps/a"), {"data": {"forbidden": "1"}}))
        asked = last_asked(hook)
        here.see("asked of an update", [asked["operation"], asked["oldObject"].get("data"), asked["options"]])
        here.see("a delete", here.delete(here.core("configmaps/a")).status)
        asked = last_asked(hook)
        here.see("asked of a delete", [asked["operation"], asked["object"], sorted(asked["oldObject"])])


def test_webhooks_that_change(here, hook):
    here.made(f"{GROUP}/mutatingwebhookconfigurations", configuration(here, hook, "change"))
    for number in range(2000):
        made = here.create(here.core("configmaps"), {"metadata": {"name": f"c{number}"}}, dryRun="All")
        if made["data"] if "data" in made.body else None:
            break
    here.see("changed", made["data"])
    here.see("asked", last_asked(hook)["dryRun"])


def test_webhooks_that_are_not_there(here, hook):
    gone = configuration(here, hook, "x")
    gone["webhooks"][0]["clientConfig"] = {"url": "https://127.0.0.1:1/x", "caBundle": hook.authority}
    here.made(f"{GROUP}/validatingwebhookconfigurations", gone)
    here.see("refused", until_refused(here))
    lenient = configuration(here, hook, "x", failurePolicy="Ignore")
    lenient["webhooks"][0]["clientConfig"] = gone["webhooks"][0]["clientConfig"]
    path = f"{GROUP}/validatingwebhookconfigurations/{here.name('hook')}"
    here.patch(path, {"webhooks": lenient["webhooks"]})
    for _ in range(2000):
        if here.create(here.core("configmaps"), {"metadata": {"name": "i"}}, dryRun="All").status == 201:
            break
    here.see("ignored", here.create(here.core("configmaps"), {"metadata": {"name": "i"}}).status)
    wrong = configuration(here, hook, "x", sideEffects="Some")
    here.see("a wrong configuration", here.create(f"{GROUP}/validatingwebhookconfigurations", wrong))


#: Fields of a subresource that a policy has to see, as text that the answer to a refused request contains.
SEEN = (
    "request.kind.group + '/' + request.kind.version + ' ' + request.kind.kind + ' of ' + request.resource.resource"
    " + '/' + request.subResource + ' ' + request.operation + ' ' + request.name"
)


def refused(here, name, resource, operation, expression, message):
    """Refuses writes of a subresource by a policy, and returns when the API server does."""
    rules = [{**resource, "apiVersions": ["*"], "operations": [operation]}]
    spec = {
        "matchConstraints": {"resourceRules": rules},
        "validations": [{"expression": expression, "messageExpression": message}],
    }
    here.made(f"{GROUP}/validatingadmissionpolicies", {"metadata": {"name": here.name(name)}, "spec": spec})
    bind(here, name, "Deny")


def until_status(answers, status):
    """The first answer of this status, of at most 2,000."""
    for _ in range(2000):
        answer = answers()
        if answer.status == status:
            return answer
    raise AssertionError(f"never {status}")


def test_evictions_are_admitted(here):
    pods = here.core("pods")
    here.made(pods, here.pod("held", schedulerName="nobody"))
    resource = {"apiGroups": [""], "resources": ["pods/eviction"]}
    message = SEEN + " + (oldObject == null ? ', nothing before' : '')"
    refused(here, "evictions", resource, "CREATE", "object.metadata.name != 'held'", message)
    path = f"{pods}/held/eviction"
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "held"}}
    here.see("refused", until_status(lambda: here.create(path, body, dryRun="All"), 422))
    here.see("still there", here.get(f"{pods}/held").status)
    here.made(pods, here.pod("free", schedulerName="nobody"))
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "free"}}
    here.see("allowed", here.create(f"{pods}/free/eviction", body).status)


def test_scales_are_admitted(here):
    sets = f"/apis/apps/v1/namespaces/{here.namespace}/replicasets"
    labels = {"app": "scaled"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "c", "image": "i"}]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    here.made(sets, {"metadata": {"name": "r"}, "spec": spec})
    resource = {"apiGroups": ["apps"], "resources": ["replicasets/scale"]}
    message = SEEN + " + ' from ' + string(oldObject.spec.replicas) + ' to ' + string(object.spec.replicas)"
    refused(here, "scales", resource, "UPDATE", "object.spec.replicas < 3", message)
    path = f"{sets}/r/scale"
    here.see("refused", until_status(lambda: here.patch(path, {"spec": {"replicas": 5}}, dryRun="All"), 422))
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "r", "namespace": here.namespace}}
    here.see("by an update", here.replace(path, {**scale, "spec": {"replicas": 4}}))
    here.see("unchanged", here.get(f"{sets}/r").body["spec"]["replicas"])
    here.see("allowed", here.patch(path, {"spec": {"replicas": 2}}).status)
    here.see("not by way of the object", here.patch(f"{sets}/r", {"spec": {"replicas": 6}}, dryRun="All").status)
