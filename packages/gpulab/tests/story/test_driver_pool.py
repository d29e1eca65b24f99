"""Drivers by pool: NVIDIADriver objects choose them; a pool whose driver cannot be had stops alone and says why."""

from __future__ import annotations

import pytest

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.nvidiadriver import NVIDIADriver
from kubekit.api.core import DaemonSet, Node, Pod
from kubekit.kube import NotFound

NAME = "cluster-policy"
HOSTNAME = "kubernetes.io/hostname"


def driver(name: str, **spec) -> dict:
    return {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": name}, "spec": spec}


async def use_pools(story, on: bool) -> None:
    await story.client.patch(ClusterPolicy, NAME, {"spec": {"driver": {"useNvidiaDriverCRD": on}}})


def told(name: str, kind: str, reason: str):
    def holds(found):
        return next(
            (
                condition
                for one in found
                if one.metadata.name == name
                for condition in one.status.conditions
                if condition.type == kind and condition.reason == reason
            ),
            None,
        )

    return holds


@pytest.fixture
async def pools(story, cleanup):
    """NVIDIADrivers made in the test; afterwards the ClusterPolicy's own driver is everywhere again."""
    made: list[str] = []

    async def make(name: str, **spec) -> None:
        made.append(name)
        await story.client.create(driver(name, **spec), resource=NVIDIADriver.RESOURCE)

    async def back() -> None:
        await use_pools(story, on=False)
        for name in made:
            try:
                await story.client.delete(NVIDIADriver, name)
            except NotFound:
                continue
        await story.ready()

    await story.ready()
    cleanup(back())
    return make


async def test_a_pool_whose_driver_is_nowhere_stops_alone_and_status_says_what_is_missing(story, pools):
    await pools("rest", default=True)
    await use_pools(story, on=True)
    await story.until(
        Node, lambda found: all(n.metadata.labels.get(names.DRIVER_OWNER_LABEL) == "rest" for n in found) and found
    )
    await story.opt_out("sim-1")
    before = await story.states(without="sim-1")
    published = {"repository": "nvcr.io/nvidia", "image": "driver", "version": "570", "usePrecompiled": True}
    await pools("pinned", nodeSelector={HOSTNAME: "sim-1"}, **published)
    await story.opt_in("sim-1")
    node = await story.node("sim-1", lambda node: node.status.summary.reason in ("ErrImagePull", "ImagePullBackOff"))
    kernel = (await story.client.get(Node, "sim-1")).status.node_info.kernel_version
    image = f"nvcr.io/nvidia/driver:570-{kernel}-ubuntu22.04"
    assert node.status.summary.stage == "driver"
    assert image in node.status.summary.message
    assert node.status.stages["driver"].where.startswith("pod/nvidia-driver-daemonset-pinned-")
    page = story.world.gpuplane("status")
    assert "✗ sim-1   ✓✗-------  driver" in page and f"what   cannot pull {image}: not found" in page
    assert f"where  {node.status.stages['driver'].where}" in page
    assert f"cure   NVIDIADriver pinned spec.version: one with an image for {kernel}" in page
    condition = await story.until(NVIDIADriver, told("pinned", "Ready", "DriverNotReady"))
    assert "sim-1" in condition.message
    # Other nodes did not change: the same GPUNodes, and the same pods where the driver is.
    assert await story.states(without="sim-1") == before
    # A driver that can be had, by taking the wrong one away: the default's.
    await story.client.delete(NVIDIADriver, "pinned")
    node = await story.node("sim-1", lambda node: node.status.summary.stage == "ready")
    assert (await story.client.get(Node, "sim-1")).metadata.labels[names.DRIVER_OWNER_LABEL] == "rest"
    await story.until(
        DaemonSet,
        lambda found: not any("pinned" in one.metadata.name for one in found),
        namespace="gpu-operator",
    )


async def test_two_that_select_one_node_and_a_node_that_nobody_selects(story, pools):
    await pools("first", nodeSelector={"kubernetes.io/os": "linux"})
    await use_pools(story, on=True)
    await story.until(NVIDIADriver, told("first", "Ready", "Reconciled"))
    pods = {
        pod.metadata.name: pod.metadata.uid
        for pod in await story.client.list(Pod, "gpu-operator")
        if pod.metadata.name.startswith("nvidia-driver-daemonset-first")
    }
    assert len(pods) == 2  # the third machine has a driver of its own
    await pools("second", nodeSelector={HOSTNAME: "sim-2"}, version="580.65.06")
    condition = await story.until(NVIDIADriver, told("second", "Error", "ConflictingNodeSelector"))
    assert condition.status == "True"
    assert condition.message == "NVIDIADriver first has node sim-2"
    assert {
        pod.metadata.name: pod.metadata.uid
        for pod in await story.client.list(Pod, "gpu-operator")
        if pod.metadata.name.startswith("nvidia-driver-daemonset-first")
    } == pods
    await story.opt_out("sim-3")
    await story.client.patch(NVIDIADriver, "first", {"spec": {"nodeSelector": {HOSTNAME: "sim-1"}}})
    await story.opt_in("sim-3")
    node = await story.node("sim-3", lambda node: node.status.summary.reason == "NoDriverForNode")
    assert node.status.summary.message == "no NVIDIADriver selects this node"
    page = story.world.gpuplane("status")
    assert "no NVIDIADriver selects this node" in page and "default: true" in page
    await story.until(
        NVIDIADriver, lambda found: any(one.metadata.name == "second" and one.status.state == "ready" for one in found)
    )
