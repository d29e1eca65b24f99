"""Rights of the extender in an installation: those that it needs, and no others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpuplane import names
from gpuplane.scheduler.component import LEASE
from gpuplane.scheduler.standby import own_pod
from kubekit.api.core import Node, Pod
from kubekit.kube import Client, Forbidden, Lease
from tests.support.extender_world import ACCOUNT, PATIENCE, World, account_client, extender, gpu_pod
from tinykube.apiserver.hooks import User


async def test_its_account_suffices_for_all_it_does(cluster: World, account: Client) -> None:
    await cluster.node("n1", 2)
    async with extender(account) as running:
        first = await cluster.pod(gpu_pod("first", (60, 10)))
        assert await running.bind(first, "n1") == ""
        second = await cluster.pod(gpu_pod("second", (60, 10)))
        assert await running.bind(second, "n1") == ""
        third = await cluster.pod(gpu_pod("third", (60, 10)))
        assert (await running.filter(third, ["n1"]))["NodeNames"] == []
        await cluster.end("first")
        await running.until(lambda: running.leader.requeuer.touched == 1)
        await running.leader.binder._recorder.flush()
        assert [event.involved_object.name for event in await cluster.events("Placed")] == ["first", "second"]
    lease = Lease(account, LEASE, names.OPERATOR_NAMESPACE, "me")
    held = asyncio.Event()

    async def lead() -> None:
        held.set()

    async with asyncio.timeout(PATIENCE):
        await lease.lead(lead)
    assert held.is_set()


PATCHES: list[dict[str, Any]] = [
    {"metadata": {"labels": {"a": "b"}}},
    {"metadata": {"annotations": {"a": "b"}}},
    {"metadata": {"annotations": {"kept": None, names.SHARE_FREED_ANNOTATION: "now"}}},
    {"metadata": {"finalizers": ["example.com/held"]}},
    # The garbage collector deletes a Node whose owner does not exist.
    {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "none", "uid": "none"}]}},
    {"spec": {"unschedulable": True}},
    {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
]


async def test_of_a_node_it_changes_one_annotation_and_nothing_else(cluster: World, account: Client) -> None:
    await cluster.node("n1", 1, labels={"kept": "true"})
    await cluster.client.patch(Node, "n1", {"metadata": {"annotations": {"kept": "true"}}})
    for patch in PATCHES:
        with pytest.raises(Forbidden):
            await account.patch(Node, "n1", patch)
    await account.patch(Node, "n1", {"metadata": {"annotations": {names.SHARE_FREED_ANNOTATION: "now"}}})


def binding(pod: str, node: str, **annotations: str) -> dict[str, Any]:
    meta = {"name": pod, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"kind": "Node", "name": node}}


@pytest.mark.parametrize(
    "annotation",
    [
        "cdi.k8s.io/all",  # brings a container all GPUs of its node
        "k8s.v1.cni.cncf.io/networks",
        "container.apparmor.security.beta.kubernetes.io/c0",
        "gpuplane.dev.example.com/a",
    ],
)
async def test_a_binding_brings_a_pod_no_annotation_of_others(cluster: World, account: Client, annotation: str) -> None:
    await cluster.node("n1", 1)
    await cluster.pod(gpu_pod("a", (60, 10)))
    path = "/api/v1/namespaces/default/pods/a/binding"
    with pytest.raises(Forbidden, match="gpuplane-scheduler-bindings"):
        await account.request("POST", path, None, binding("a", "n1", **{annotation: "x"}))
    assert not (await cluster.client.get(Pod, "a", "default")).spec.node_name
    await account.request("POST", path, None, binding("a", "n1", **{names.PREDICATE_NODE_ANNOTATION: "n1"}))
    bound = await cluster.client.get(Pod, "a", "default")
    assert (bound.spec.node_name, annotation in bound.metadata.annotations) == ("n1", False)


async def test_what_it_has_no_business_with(cluster: World, account: Client) -> None:
    await cluster.node("n1", 1)
    await cluster.pod(gpu_pod("a", (60, 10)))
    for attempt in (
        lambda: account.delete(Pod, "a", "default"),
        lambda: account.patch(Pod, "a", {"metadata": {"labels": {"a": "b"}}}, "default"),
        lambda: account.delete(Node, "n1"),
        lambda: account.request("GET", "/api/v1/secrets"),
        lambda: account.request("GET", "/api/v1/configmaps"),
        lambda: account.create(gpu_pod("b", (1, 1)), resource=Pod.RESOURCE),
    ):
        with pytest.raises(Forbidden):
            await attempt()


async def test_of_its_own_pod_it_changes_one_annotation_and_of_other_pods_nothing(cluster: World) -> None:
    namespace = names.OPERATOR_NAMESPACE
    async with account_client(cluster) as account:
        for name in ("replica", "other"):
            pod = gpu_pod(name, (30, 8), namespace=namespace)
            await cluster.client.create(pod, resource=Pod.RESOURCE)
        extra = {"authentication.kubernetes.io/pod-name": ("replica",)}
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        unbound = own_pod(account, "replica", namespace, "me")
        with pytest.raises(Forbidden):
            await unbound()  # a token that is bound to no pod
        cluster.server.extensions.identity.add("scheduler", User(name=ACCOUNT, groups=groups, extra=extra))
        before = await cluster.get("replica", namespace)
        version = await own_pod(account, "replica", namespace, "me")()
        pod = await cluster.get("replica", namespace)
        assert pod.metadata.annotations == {names.LEADER_ANNOTATION: "me"}
        assert int(version) == int(pod.metadata.resource_version) > int(before.metadata.resource_version)
        with pytest.raises(Forbidden):
            await own_pod(account, "other", namespace, "me")()
        container: dict[str, Any] = {"name": "c0", "image": "another"}
        for patch in (
            {"metadata": {"labels": {"a": "b"}}},
            {"metadata": {"annotations": {"a": "b"}}},
            {"metadata": {"annotations": {names.LEADER_ANNOTATION: "me", "a": "b"}}},
            {"spec": {"containers": [container]}},
            {"metadata": {"finalizers": ["example.com/held"]}},
        ):
            with pytest.raises(Forbidden):
                await account.patch(Pod, "replica", patch, namespace, "strategic")
