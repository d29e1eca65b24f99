"""Only those who may change nodes order moves, and only the scheduler says that a pod was moved."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpuplane import names
from kubekit.api.core import Pod
from kubekit.kube import ApiEndpoint, Client, Forbidden
from kubekit.kube.auth import StaticAuth
from tests.support.extender_world import World, account_client, gpu_pod
from tests.support.scheduled_pods import ours
from tinykube.apiserver.hooks import User

ORDER = {names.MOVE_ANNOTATION: '{"node":"n2","until":"2030-01-01T00:00:00Z"}'}
QUEUE = {names.BOUND_QUEUE_ANNOTATION: "main"}
RECORD = {names.MOVED_ANNOTATION: "2026-01-01T00:00:00Z"}
PODS = Pod.RESOURCE.path("default", "p")
USER = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io"}
RULES = {
    "tenant": [{"apiGroups": [""], "resources": ["pods", "pods/status", "pods/binding"], "verbs": ["*"]}],
    "keeper": [{"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["*"]}],
}


@pytest.fixture
async def scheduler(cluster: World) -> AsyncIterator[Client]:
    """The scheduler's account; a tenant who may do all with pods, and a keeper of nodes."""
    async with account_client(cluster, pod_scheduler=True) as client:
        for name, rules in RULES.items():
            cluster.server.extensions.identity.add(name, User(name, ("system:authenticated",)))
            await cluster.server.registry.create("clusterroles", None, {"metadata": {"name": name}, "rules": rules})
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
            binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [{**USER, "name": name}]}
            await cluster.server.registry.create("clusterrolebindings", None, binding)
        yield client


def user(cluster: World, name: str) -> Client:
    tls = ssl.create_default_context(cafile=str(cluster.server.authority))
    return Client(ApiEndpoint(host="127.0.0.1", port=cluster.server.port, auth=StaticAuth(token=name), tls=tls))


async def annotate(client: Client, annotations: dict[str, Any], subresource: str = "") -> None:
    body = {"metadata": {"annotations": annotations}}
    path = f"{PODS}/{subresource}".rstrip("/")
    await client.request("PATCH", path, None, body, "application/merge-patch+json")


@pytest.mark.parametrize("subresource", ["", "status"])
@pytest.mark.parametrize("annotations", [ORDER, RECORD])
async def test_a_tenant_orders_no_move_and_records_none(
    cluster: World, scheduler: Client, annotations: dict[str, str], subresource: str
) -> None:
    await cluster.pod(ours(gpu_pod("p", (60, 10))))
    async with user(cluster, "tenant") as tenant:
        with pytest.raises(Forbidden, match="gpuplane-moves"):
            await annotate(tenant, annotations, subresource)
        await annotate(tenant, {"mine": "1"}, subresource)
        made = ours(gpu_pod("q", (60, 10)))
        made["metadata"]["annotations"] = annotations
        with pytest.raises(Forbidden, match="gpuplane-moves"):
            await tenant.create(made, resource=Pod.RESOURCE)


@pytest.mark.parametrize("annotations", [RECORD, QUEUE])
async def test_a_tenant_binds_no_pod_as_moved_or_in_a_queue(
    cluster: World, scheduler: Client, annotations: dict[str, str]
) -> None:
    await cluster.node("n1", 1)
    await cluster.pod(ours(gpu_pod("p", (60, 10))))
    binding = {"metadata": {"name": "p", "annotations": annotations}, "target": {"kind": "Node", "name": "n1"}}
    async with user(cluster, "tenant") as tenant:
        with pytest.raises(Forbidden, match="the scheduler writes them"):
            await tenant.request("POST", f"{PODS}/binding", None, binding)
    await scheduler.request("POST", f"{PODS}/binding", None, binding)


@pytest.mark.parametrize("subresource", ["", "status"])
async def test_a_tenant_moves_no_pod_to_another_queue(cluster: World, scheduler: Client, subresource: str) -> None:
    """A pod that is created with the annotation, such as a copy of another one, gets that of its own Binding."""
    made = ours(gpu_pod("p", (60, 10)))
    made["metadata"]["annotations"] = dict(QUEUE)
    async with user(cluster, "tenant") as tenant:
        await tenant.create(made, resource=Pod.RESOURCE)
        for value in ("other", None):
            with pytest.raises(Forbidden, match="gpuplane-moves"):
                await annotate(tenant, {names.BOUND_QUEUE_ANNOTATION: value}, subresource)


async def test_who_may_change_nodes_orders_a_move_and_takes_it_back(cluster: World, scheduler: Client) -> None:
    await cluster.pod(ours(gpu_pod("p", (60, 10))))
    async with user(cluster, "keeper") as keeper, user(cluster, "tenant") as tenant:
        await annotate(keeper, ORDER)
        with pytest.raises(Forbidden, match="gpuplane-moves"):
            await annotate(tenant, {names.MOVE_ANNOTATION: None})
        await annotate(tenant, {"mine": "1"})
        await annotate(keeper, {names.MOVE_ANNOTATION: None})
