"""Pods with claims of volumes and devices, through the pod scheduler, on a real control plane.

It runs as a process under its own account. The controller manager makes claims from templates and binds volumes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from gpulab.kubernetes.control_plane import ControlPlane
from gpuplane import names
from gpuplane.scheduler.claims.device_watch import StoredDeviceClaim
from kubekit.api.core import Pod
from kubekit.api.kinds import built_in
from kubekit.kube import Client, Conflict
from kubekit.scheduling.devices.facts import FINALIZER
from tests.support.realkube.started import started
from tests.support.realkube.watching import until_objects
from tests.support.scheduled_pods import plain, reasons
from tests.support.share_burst import add_nodes, extending, free_port
from tests.support.storage_objects import CLAIM, MERGE, VOLUME, claim, local_volume, make_classes, with_claims

DRIVER: Final = "gpu.example.com"
DEVICE_CLAIM: Final = built_in("resource.k8s.io/v1", "ResourceClaim")
TEMPLATE: Final = built_in("resource.k8s.io/v1", "ResourceClaimTemplate")
SLICE: Final = built_in("resource.k8s.io/v1", "ResourceSlice")
DEVICE_CLASS: Final = built_in("resource.k8s.io/v1", "DeviceClass")
AT_ONCE: Final = {"terminationGracePeriodSeconds": 0}


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    with started(ControlPlane(tmp_path / "plane")) as made:
        yield made


def spec(**exactly: Any) -> dict[str, Any]:
    return {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", **exactly}}]}}


def claiming(name: str, claim: str = "", template: str = "") -> dict[str, Any]:
    """A pod with one resource claim."""
    source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
    return plain(name, resourceClaims=[{"name": "gpu", **source}], **AT_ONCE)


async def create(client: Client, *pods: dict[str, Any]) -> None:
    for pod in pods:
        await client.create(pod, resource=Pod.RESOURCE)


async def bound(client: Client, *wanted: str) -> dict[str, str]:
    """The nodes of the pods by name, once these have one."""

    def nodes(pods: list[Pod]) -> dict[str, str] | None:
        found = {pod.metadata.name: pod.spec.node_name for pod in pods if pod.spec.node_name}
        return found if found.keys() >= set(wanted) else None

    found: dict[str, str] = await until_objects(
        client, Pod, nodes, seconds=60, describe=lambda pod: f"{pod.metadata.name}: {pod.spec.node_name} {reasons(pod)}"
    )
    return found


async def said(client: Client, text: str) -> str:
    """The name of a pod that waits for a reason with this text, once there is one."""

    def waiting(pods: list[Pod]) -> str:
        return next((pod.metadata.name for pod in pods for one in reasons(pod) if text in one), "")

    found: str = await until_objects(client, Pod, waiting)
    return found


async def test_claims_get_devices_and_their_pods_follow(plane: ControlPlane) -> None:
    async with (
        Client.connect(plane.kubeconfig) as client,
        extending(client, plane.kubeconfig, free_port(), pod_scheduler=True),
    ):
        nodes = await add_nodes(client, 2, 1)
        await client.create({"metadata": {"name": "gpu"}, "spec": {}}, resource=DEVICE_CLASS)
        for node in nodes:
            devices = [{"name": "gpu-0", "attributes": {"index": {"int": 0}}}]
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            body = {"driver": DRIVER, "pool": pool, "nodeName": node, "devices": devices}
            await client.create({"metadata": {"name": node}, "spec": body}, resource=SLICE)
        meta = {"name": "one", "namespace": "default"}
        await client.create({"metadata": meta, "spec": {"spec": spec()}}, resource=TEMPLATE)

        # Three pods for two devices: the third waits, until the claim of another has gone with its pod.
        await create(client, *(claiming(f"own-{at}", template="one") for at in range(3)))
        waiting = await said(client, "2 cannot allocate all claims. still not schedulable, preemption: 0/2 nodes are")
        others = {f"own-{at}" for at in range(3)} - {waiting}
        placed = await bound(client, *others)
        assert {placed[name] for name in others} == set(nodes)
        claims = await client.list(StoredDeviceClaim)
        held = [one for one in claims if one.status.get("allocation")]
        assert len(held) == 2 and all(one.metadata.finalizers for one in held)
        for one in held:
            (user,) = one.status["reservedFor"]
            (result,) = one.status["allocation"]["devices"]["results"]
            assert result["pool"] == placed[user["name"]]
        await client.delete(Pod, min(others), "default", grace_seconds=0)
        await bound(client, waiting)

        # Two pods share a claim, and so the node with its device.
        for name in (max(others), waiting):
            await client.delete(Pod, name, "default", grace_seconds=0)
        await client.create(
            {"metadata": {"name": "shared", "namespace": "default"}, "spec": spec()}, resource=DEVICE_CLAIM
        )
        await create(client, claiming("first", "shared"), claiming("second", "shared"))
        placed = await bound(client, "first", "second")
        assert placed["first"] == placed["second"]
        shared = await client.get(StoredDeviceClaim, "shared", "default")
        assert {one["name"] for one in shared.status["reservedFor"]} == {"first", "second"}


async def test_a_claim_that_an_earlier_leader_may_be_writing_is_marked_first(plane: ControlPlane) -> None:
    """By the scheduler's own account: a late write of the earlier leader names another version, and is refused."""
    async with Client.connect(plane.kubeconfig) as client:
        for name, finalizers in (("protected", [FINALIZER]), ("new", [])):
            meta = {"name": name, "namespace": "default", "finalizers": finalizers}
            await client.create({"metadata": meta, "spec": spec()}, resource=DEVICE_CLAIM)
        before = await client.get(StoredDeviceClaim, "protected", "default")
        async with extending(client, plane.kubeconfig, free_port(), pod_scheduler=True):

            def marked(claims: list[StoredDeviceClaim]) -> set[str]:
                return {one.metadata.name for one in claims if names.LEADER_ANNOTATION in one.metadata.annotations}

            assert await until_objects(client, StoredDeviceClaim, marked) == {"protected"}
            late = {
                "metadata": {"uid": before.metadata.uid, "resourceVersion": before.metadata.resource_version},
                "status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "p"}]},
            }
            with pytest.raises(Conflict):
                await client.patch(StoredDeviceClaim, "protected", late, "default", "strategic", "status")


async def test_volumes_are_bound_with_their_first_pod(plane: ControlPlane) -> None:
    async with (
        Client.connect(plane.kubeconfig) as client,
        extending(client, plane.kubeconfig, free_port(), pod_scheduler=True),
    ):
        nodes = await add_nodes(client, 2, 1)
        for node in nodes:
            body = {"metadata": {"labels": {"kubernetes.io/hostname": node}}}
            await client.request("PATCH", f"/api/v1/nodes/{node}", None, body, MERGE)
        await make_classes(client)
        await create(client, with_claims(plain("one"), "data-one"), with_claims(plain("two"), "data-two"))
        await said(client, 'persistentvolumeclaim "data-one" not found')
        for name in ("one", "two"):
            await client.create(claim(f"data-{name}"), resource=CLAIM)
        await client.create(local_volume("disk-1", nodes[1]), resource=VOLUME)
        await client.create(local_volume("disk-2", nodes[1]), resource=VOLUME)
        placed = await bound(client, "one", "two")
        assert set(placed.values()) == {nodes[1]}
        volumes = {(await client.get(_Claim, f"data-{name}", "default")).spec["volumeName"] for name in ("one", "two")}
        assert volumes == {"disk-1", "disk-2"}


class _Claim(StoredDeviceClaim):
    RESOURCE = CLAIM
