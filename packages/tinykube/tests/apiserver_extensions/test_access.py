"""Identity and access: tokens, impersonation, roles, what kubelets may, reviews."""

from __future__ import annotations

from typing import Any

import pytest

from tinykube.apiserver import ApiFailure, User
from tinykube.apiserver.asgi import HttpRequest
from tinykube.apiserver.hooks import Attributes, ImpersonationRefused
from tinykube.apiserver.identity import ADMIN, node_user

JANE = User("jane", ("devs", "system:authenticated"))


def request(**headers: str) -> HttpRequest:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(_: Any) -> None:
        return None

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return HttpRequest({"type": "http", "path": "/", "headers": raw, "query_string": b""}, receive, send)


def may(cluster: Any, user: User, verb: str, resource: str, namespace: str = "", name: str = "", **more: str) -> bool:
    wanted = Attributes(verb, resource=resource, namespace=namespace, name=name, **more)
    return cluster.extensions.rbac.authorize(user, wanted) is None


async def grant(cluster: Any, kind: str, rules: list[dict[str, Any]], subject: dict[str, Any], **meta: Any) -> None:
    """A role of its own and the binding to it."""
    plural = kind.lower() + "s"
    await cluster.create(plural, {"metadata": {"name": "r", **meta}, "rules": rules})
    binding = {"metadata": {"name": "b"}, "roleRef": {"kind": kind, "name": "r"}, "subjects": [subject]}
    await cluster.create(plural.replace("roles", "rolebindings"), binding)


async def test_fixed_tokens_and_anonymous(cluster):
    identity = cluster.extensions.identity
    identity.add("secret", ADMIN)
    assert identity.authenticate(request(authorization="Bearer secret")) == ADMIN
    assert identity.authenticate(request()).name == "system:anonymous"
    for wrong in ("Bearer nonsense", "Bearer a.b.c", "Basic x"):
        with pytest.raises(ApiFailure) as refused:
            identity.authenticate(request(authorization=wrong))
        assert refused.value.status == 401


async def test_impersonation_needs_the_right_to_it(cluster):
    identity = cluster.extensions.identity
    identity.add("admin", ADMIN)
    identity.add("jane", JANE)
    seen = identity.authenticate(request(authorization="Bearer admin", impersonate_user="bob"))
    assert seen == User("bob", ("system:authenticated",))
    with pytest.raises(ImpersonationRefused) as refused:
        identity.authenticate(request(authorization="Bearer jane", impersonate_user="bob"))
    assert refused.value.caller == JANE


async def test_roles_hold_with_the_write_that_makes_them(cluster):
    assert not may(cluster, JANE, "get", "pods", "default")
    rules = [{"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get"], "resourceNames": ["mine"]}]
    await grant(cluster, "Role", rules, {"kind": "Group", "name": "devs"})
    assert may(cluster, JANE, "get", "pods", "default", "mine")
    assert may(cluster, JANE, "get", "pods", "default", "mine", subresource="log")
    assert not may(cluster, JANE, "get", "pods", "default", "other")
    assert not may(cluster, JANE, "get", "pods", "kube-system", "mine")
    assert not may(cluster, JANE, "get", "pods", "default", "mine", subresource="exec")
    assert not may(cluster, JANE, "delete", "pods", "default", "mine")
    await cluster.registry.delete("rolebindings", "default", "b")
    assert not may(cluster, JANE, "get", "pods", "default", "mine")


async def test_cluster_roles_reach_everywhere_and_to_paths(cluster):
    rules = [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["list"]},
        {"nonResourceURLs": ["/logs/*"], "verbs": ["get"]},
    ]
    account = {"kind": "ServiceAccount", "name": "bot", "namespace": "default"}
    await grant(cluster, "ClusterRole", rules, account)
    bot = User("system:serviceaccount:default:bot")
    assert may(cluster, bot, "list", "nodes") and may(cluster, bot, "list", "deployments", "x", group="apps")
    assert cluster.extensions.rbac.authorize(bot, Attributes("get", path="/logs/kubelet")) is None
    refusal = cluster.extensions.rbac.authorize(bot, Attributes("get", path="/metrics"))
    assert refusal == 'forbidden: User "system:serviceaccount:default:bot" cannot get path "/metrics"'


async def test_a_kubelet_writes_only_what_is_its_own(cluster):
    kubelet = node_user("n1")
    await cluster.pod("here", nodeName="n1")
    await cluster.pod("there", nodeName="n2")
    assert may(cluster, kubelet, "patch", "nodes", name="n1", subresource="status")
    assert not may(cluster, kubelet, "patch", "nodes", name="n2", subresource="status")
    assert not may(cluster, kubelet, "delete", "nodes", name="n1")
    assert may(cluster, kubelet, "patch", "pods", "default", "here", subresource="status")
    assert not may(cluster, kubelet, "patch", "pods", "default", "there", subresource="status")
    assert not may(cluster, kubelet, "patch", "pods", "default", "here")
    assert may(cluster, kubelet, "update", "leases", "kube-node-lease", "n1", group="coordination.k8s.io")
    assert not may(cluster, kubelet, "update", "leases", "kube-system", "n1", group="coordination.k8s.io")
    assert not may(cluster, kubelet, "delete", "deployments", "default", "d", group="apps")


async def test_a_kubelet_reads_its_node_and_its_pods_alone(cluster):
    kubelet = node_user("n1")
    assert may(cluster, kubelet, "watch", "nodes", name="n1")
    assert not may(cluster, kubelet, "get", "nodes", name="n2") and not may(cluster, kubelet, "list", "nodes")
    assert may(cluster, kubelet, "list", "pods", selected_node="n1")
    assert not may(cluster, kubelet, "list", "pods") and not may(cluster, kubelet, "list", "pods", selected_node="n2")
    assert may(cluster, kubelet, "list", "services")
    for verb in ("get", "list", "patch"):
        assert not may(cluster, kubelet, verb, "gpunodes", name="n1", group="gpuplane.dev")


async def test_a_kubelet_reads_what_its_pods_refer_to(cluster):
    kubelet = node_user("n1")
    variable = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "env", "key": "a"}}}
    await cluster.create("serviceaccounts", {"metadata": {"name": "bot"}})
    projected = {"name": "p", "projected": {"sources": [{"configMap": {"name": "part"}}, {"secret": {"name": "key"}}]}}
    await cluster.pod(
        "here",
        nodeName="n1",
        serviceAccountName="bot",
        containers=[{"name": "c", "image": "i", "env": [variable], "envFrom": [{"configMapRef": {"name": "all"}}]}],
        volumes=[projected, {"name": "v", "persistentVolumeClaim": {"claimName": "disk"}}],
    )
    await cluster.pod("there", nodeName="n2", volumes=[{"name": "s", "secret": {"secretName": "other"}}])
    for resource, name in (("secrets", "env"), ("secrets", "key"), ("configmaps", "part"), ("configmaps", "all")):
        assert may(cluster, kubelet, "get", resource, "default", name)
        assert may(cluster, kubelet, "watch", resource, "default", name)
        assert not may(cluster, kubelet, "get", resource, "kube-system", name)
        assert not may(cluster, kubelet, "update", resource, "default", name)
    assert not may(cluster, kubelet, "get", "secrets", "default", "other")
    assert not may(cluster, kubelet, "list", "secrets", "default")
    assert may(cluster, node_user("n2"), "get", "secrets", "default", "other")
    assert may(cluster, kubelet, "get", "persistentvolumeclaims", "default", "disk")
    assert may(cluster, kubelet, "create", "serviceaccounts", "default", "bot", subresource="token")
    assert not may(cluster, kubelet, "create", "serviceaccounts", "default", "default", subresource="token")


async def test_the_words_of_a_refusal(cluster):
    refusal = cluster.extensions.rbac.authorize(
        JANE, Attributes("delete", group="apps", resource="deployments", namespace="default", name="web")
    )
    assert refusal == (
        'deployments.apps "web" is forbidden: User "jane" cannot delete resource "deployments" '
        'in API group "apps" in the namespace "default"'
    )


async def test_reviews(cluster):
    reviews = cluster.registry.hooks.reviews
    asked = {"verb": "get", "resource": "pods", "namespace": "default"}
    own = await reviews["selfsubjectaccessreviews"]({"spec": {"resourceAttributes": asked}}, "", JANE)
    assert own["status"]["allowed"] is False
    spec = {"user": "root", "groups": ["system:masters"], "resourceAttributes": asked}
    assert (await reviews["subjectaccessreviews"]({"spec": spec}, "", JANE))["status"]["allowed"] is True
    rules = await reviews["selfsubjectrulesreviews"]({"spec": {"namespace": "default"}}, "", ADMIN)
    assert rules["status"]["resourceRules"][0]["verbs"] == ["*"]
    me = await reviews["selfsubjectreviews"]({}, "", JANE)
    assert me["status"]["userInfo"] == {"username": "jane", "groups": ["devs", "system:authenticated"]}
    account = await cluster.create("serviceaccounts", {"metadata": {"name": "bot"}})
    token, _ = cluster.extensions.identity.accounts.issue(account, 600)
    known = await reviews["tokenreviews"]({"spec": {"token": token}}, "", ADMIN)
    assert known["status"]["user"]["username"] == "system:serviceaccount:default:bot"
    unknown = await reviews["tokenreviews"]({"spec": {"token": "x"}}, "", ADMIN)
    assert "authenticated" not in unknown["status"] and unknown["status"]["error"]


async def test_the_roles_of_users_write_no_status(cluster):
    for role in ("edit", "admin"):
        user = User(role, ("system:authenticated",))
        subject = {"kind": "User", "name": role, "apiGroup": "rbac.authorization.k8s.io"}
        binding = {"metadata": {"name": role}, "roleRef": {"kind": "ClusterRole", "name": role}, "subjects": [subject]}
        await cluster.create("rolebindings", binding)
        for group, resource in (
            ("batch", "jobs"),
            ("batch", "cronjobs"),
            ("policy", "poddisruptionbudgets"),
            ("autoscaling", "horizontalpodautoscalers"),
            ("networking.k8s.io", "ingresses"),
        ):
            assert may(cluster, user, "patch", resource, "default", "x", group=group)
            assert may(cluster, user, "get", resource, "default", "x", group=group, subresource="status")
            assert not may(cluster, user, "patch", resource, "default", "x", group=group, subresource="status")
