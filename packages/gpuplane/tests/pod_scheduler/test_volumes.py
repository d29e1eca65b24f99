"""Pods go where their volumes are; claims that wait for their first pod are bound before it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpuplane import names
from gpuplane.scheduler.claims.volume_binding import VolumeBinder
from gpuplane.scheduler.claims.volume_watch import StoredClaim, StoredVolume
from kubekit.api.core import Event, Pod
from kubekit.api.meta import ObjectMeta
from kubekit.errors import Retryable
from kubekit.kube import Forbidden
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.podinfo import compile_node, compile_pod
from kubekit.scheduling.queue import ClusterEvent
from kubekit.scheduling.volumes.facts import compile_claim, compile_class
from tests.support.extender_world import Running, World, account_client, extender, gpu_pod
from tests.support.scheduled_pods import bound, ours, plain, refused
from tests.support.storage_objects import (
    CLAIM,
    LATE,
    MERGE,
    SELECTED_NODE,
    VOLUME,
    claim,
    complete,
    local_volume,
    make_classes,
    make_volume,
    with_claims,
)
from tests.support.until import until_objects
from tests.support.virtual_time import VirtualClock


@pytest.fixture
async def nodes(cluster: World) -> None:
    for name in ("n1", "n2"):
        await cluster.node(name, 2, labels={"kubernetes.io/hostname": name})
    await make_classes(cluster.client)


def share(name: str, *claims: str) -> dict[str, Any]:
    return with_claims(ours(gpu_pod(name, (30, 20))), *claims)


async def reserved(cluster: World, name: str) -> str:
    """The claim that a volume is reserved for, once it is."""

    def of(volumes: list[StoredVolume]) -> str:
        references = [one.spec.get("claimRef") for one in volumes if one.metadata.name == name]
        return next((one["name"] for one in references if one and one.get("uid")), "")

    found: str = await until_objects(cluster.client, StoredVolume, of)
    return found


async def selected(cluster: World, name: str) -> str:
    """The node that is selected for a claim's volume, once one is."""

    def of(claims: list[StoredClaim]) -> str:
        return next(
            (one.metadata.annotations.get(SELECTED_NODE, "") for one in claims if one.metadata.name == name), ""
        )

    found: str = await until_objects(cluster.client, StoredClaim, of)
    return found


async def failures(cluster: World, text: str) -> list[str]:
    """The messages of FailedScheduling that contain the text, once there are some."""

    def of(events: list[Event]) -> list[str]:
        return [one.message for one in events if one.reason == "FailedScheduling" and text in one.message]

    found: list[str] = await until_objects(cluster.client, Event, of)
    return found


async def test_a_pod_waits_for_its_claim_and_goes_where_the_volume_is(
    cluster: World, nodes: None, running: Running
) -> None:
    await cluster.pod(share("a", "data"))
    missing = '0/2 nodes are available: persistentvolumeclaim "data" not found. not found'
    assert await refused(cluster, "a") == missing
    assert missing in await failures(cluster, "data")
    await make_volume(cluster.client, local_volume("disk", "n2"), "Bound")
    await cluster.client.create(claim("data", volumeName="disk"), resource=CLAIM)
    await failures(cluster, "pod has unbound immediate PersistentVolumeClaims")
    await complete(cluster.client, "data", "disk")
    pods = await bound(cluster, "a")
    assert pods["a"].spec.node_name == "n2"


async def test_a_volume_is_reserved_for_a_claim_and_the_pod_bound_when_both_are_bound(
    cluster: World, nodes: None, running: Running
) -> None:
    await make_volume(cluster.client, local_volume("disk", "n2"))
    await cluster.client.create(claim("data"), resource=CLAIM)
    await cluster.pod(share("a", "data"))
    assert await reserved(cluster, "disk") == "data"
    pod = await cluster.get("a")
    assert not pod.spec.node_name
    stored = await cluster.client.get(StoredVolume, "disk")
    assert stored.metadata.annotations == {"pv.kubernetes.io/bound-by-controller": "yes"}
    await cluster.pod(share("next"))
    await bound(cluster, "next")  # others do not wait for the volume
    await complete(cluster.client, "data", "disk")
    pods = await bound(cluster, "a")
    assert pods["a"].spec.node_name == "n2"


async def test_a_volume_is_made_near_the_node_that_is_selected(cluster: World, nodes: None, running: Running) -> None:
    await cluster.client.create(claim("data", LATE), resource=CLAIM)
    await cluster.pod(share("a", "data"))
    node = await selected(cluster, "data")
    await make_volume(cluster.client, local_volume("made", node, LATE), "Bound")
    await complete(cluster.client, "data", "made")
    pods = await bound(cluster, "a")
    assert pods["a"].spec.node_name == node


async def test_a_driver_that_cannot_make_the_volume_sends_the_pod_back(
    cluster: World, nodes: None, running: Running
) -> None:
    await cluster.client.create(claim("data", LATE), resource=CLAIM)
    await cluster.pod(share("a", "data"))
    await selected(cluster, "data")
    body = {"metadata": {"annotations": {SELECTED_NODE: None}}}
    await cluster.client.request("PATCH", CLAIM.path("default", "data"), None, body, MERGE)
    (text, *_) = await failures(cluster, "PreBind")
    wanted = 'running PreBind plugin "VolumeBinding": binding volumes: provisioning failed for PVC "data"'
    assert text == wanted
    node = await selected(cluster, "data")  # it is tried again
    await make_volume(cluster.client, local_volume("made", node, LATE), "Bound")
    await complete(cluster.client, "data", "made")
    await bound(cluster, "a")


async def test_a_pod_that_is_deleted_while_its_volume_is_made_holds_nothing(
    cluster: World, nodes: None, running: Running
) -> None:
    """A volume whose claim has gone with the pod is free again only by an administrator; the GPUs are free at once."""
    await cluster.client.create(claim("data", LATE), resource=CLAIM)
    whole = with_claims(ours(gpu_pod("a", whole=2)), "data")
    await cluster.pod(whole)
    node = await selected(cluster, "data")
    await cluster.delete("a")
    await cluster.pod(ours(gpu_pod("b", whole=2), nodeSelector={"kubernetes.io/hostname": node}))
    pods = await bound(cluster, "b")
    assert pods["b"].spec.node_name == node


async def test_two_pods_do_not_get_one_volume(cluster: World, nodes: None, running: Running) -> None:
    await make_volume(cluster.client, local_volume("disk", "n1"))
    for name in ("one", "two"):
        await cluster.client.create(claim(name), resource=CLAIM)
        await cluster.pod(share(name, name))
    first = await reserved(cluster, "disk")
    (second,) = {"one", "two"} - {first}
    text = "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind."
    assert (await refused(cluster, second)).startswith(text)
    await make_volume(cluster.client, local_volume("more", "n2"))
    assert await reserved(cluster, "more") == second


async def test_pods_of_a_gang_get_a_volume_each(cluster: World, nodes: None, running: Running) -> None:
    for name in ("disk-1", "disk-2"):
        await make_volume(cluster.client, local_volume(name, "n1"))
    gang = {names.GANG_ANNOTATION: "g", names.GANG_SIZE_ANNOTATION: "2"}
    for name in ("one", "two"):
        await cluster.client.create(claim(name), resource=CLAIM)
        pod = share(name, name)
        pod["metadata"]["annotations"] = gang
        await cluster.pod(pod)
    claims = {await reserved(cluster, volume): volume for volume in ("disk-1", "disk-2")}
    assert set(claims) == {"one", "two"}
    for name, volume in claims.items():
        await complete(cluster.client, name, volume)
    await bound(cluster, "one", "two")


async def test_a_node_that_attaches_no_more_volumes_is_left_out(cluster: World, nodes: None, running: Running) -> None:
    driver = {"name": "disks.example.com", "nodeID": "n1", "allocatable": {"count": 1}}
    for name in ("one", "two"):
        await make_volume(cluster.client, local_volume(name, "n1"), "Bound")
        await cluster.client.create(claim(name, volumeName=name), resource=CLAIM)
        await complete(cluster.client, name, name)
    await cluster.client.create(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSINode",
            "metadata": {"name": "n1"},
            "spec": {"drivers": [driver]},
        }
    )
    await running.until(lambda: running.leader.pods and running.leader.pods.model.cache.volumes.node_limits)
    await cluster.pod(with_claims(plain("one"), "one"))
    await bound(cluster, "one")
    await cluster.pod(with_claims(plain("two"), "two"))
    assert "1 node(s) exceed max volume count" in await refused(cluster, "two")
    await cluster.delete("one")
    await bound(cluster, "two")


async def test_the_account_binds_volumes_and_changes_nothing_else_of_them(cluster: World, nodes: None) -> None:
    await make_volume(cluster.client, local_volume("disk", "n1"))
    await make_volume(cluster.client, local_volume("other", "n1"))
    await cluster.client.create(claim("data"), resource=CLAIM)
    await cluster.client.create(claim("later", LATE), resource=CLAIM)
    async with account_client(cluster, pod_scheduler=True) as account:
        async with extender(account, scheduler_name=names.SCHEDULER_NAME):
            await cluster.pod(share("a", "data", "later"))
            assert await reserved(cluster, "disk") == "data"
            assert await selected(cluster, "later") == "n1"
        for path, patch in (
            (VOLUME.path(None, "disk"), {"spec": {"claimRef": {"name": "theirs"}}}),
            (VOLUME.path(None, "disk"), {"spec": {"claimRef": None}}),
            (VOLUME.path(None, "other"), {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
            (VOLUME.path(None, "other"), {"spec": {"capacity": {"storage": "9Gi"}}}),
            (VOLUME.path(None, "other"), {"metadata": {"labels": {"a": "b"}}}),
            (VOLUME.path(None, "other"), {"metadata": {"annotations": {"a": "b"}}}),
            (CLAIM.path("default", "data"), {"spec": {"resources": {"requests": {"storage": "9Gi"}}}}),
            (CLAIM.path("default", "data"), {"metadata": {"finalizers": ["example.com/never"]}}),
            (CLAIM.path("default", "data"), {"metadata": {"annotations": {"a": "b"}}}),
        ):
            with pytest.raises(Forbidden):
                await account.request("PATCH", path, None, patch, MERGE)
    assert not (await cluster.client.get(Pod, "a", "default")).spec.node_name


class Model:
    """The part of the scheduler's model that volumes are bound by."""

    def __init__(self) -> None:
        self.cache = SchedulerCache()
        self.changes: list[ClusterEvent] = []

    def storage_changed(self, event: ClusterEvent, claim: object = None) -> None:
        self.changes.append(event)


class Writes:
    """A client that accepts patches, and writes them down."""

    def __init__(self) -> None:
        self.patches: list[dict[str, Any]] = []

    async def patch(self, kind: type[Any], name: str, patch: dict[str, Any], *rest: object) -> Any:
        self.patches.append(patch)
        return kind(metadata=ObjectMeta(name=name, resource_version="7"))


async def test_a_pod_waits_ten_minutes_for_its_volume_and_is_decided_again() -> None:
    model, client, clock, woken = Model(), Writes(), VirtualClock(), list[Any]()
    binder = VolumeBinder(client, model, clock, woken)  # type: ignore[arg-type]  # the parts that it needs
    store = model.cache.volumes
    model.cache.set_node(compile_node({"metadata": {"name": "n1"}, "status": {"allocatable": {}}}))
    made = {"provisioner": "disks.example.com", "volumeBindingMode": "WaitForFirstConsumer"}
    store.classes[LATE] = compile_class({"metadata": {"name": LATE}, **made})
    body = claim("data", LATE)
    body["metadata"] |= {"uid": "u", "resourceVersion": "5"}
    store.set_claim(compile_claim(body))
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    info = compile_pod({"metadata": {"name": "a", "namespace": "default", "uid": "a"}, "spec": {"volumes": volumes}})
    binder.reserve(info, "n1")
    waiting = asyncio.create_task(binder.bind("a"))
    await clock.advance(599)
    assert not waiting.done()
    assert client.patches == [{"metadata": {"resourceVersion": "5", "annotations": {SELECTED_NODE: "n1"}}}]
    await clock.advance(1)
    with pytest.raises(Retryable, match="binding volumes: context deadline exceeded"):
        await waiting
    binder.release("a")
    assert model.changes == []  # the claim was written, so it stays as it is
    stored = store.claim("default/data")
    assert stored is not None and stored.selected_node == "n1"
