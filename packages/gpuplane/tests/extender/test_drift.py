"""Allocations that nodes report, compared with those that pods have in their annotations."""

from __future__ import annotations

import json

from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.scheduler.drift import BYPASSED, DIFFERS, agrees, as_given, by_pod, difference
from gpuplane.sharing import Assignment, LedgerGPU, Part
from kubekit.api.core import Pod
from packages.gpuplane.tests.extender.test_conformance import bind
from tests.support.extender_world import MEMORY, Running, World, extender, gpu_pod

GPUS = tuple(LedgerGPU(index=at, uuid=f"GPU-{name}", model="T4", memory_mib=16384) for at, name in enumerate("ab"))


def said(*parts: tuple[str, int, int]) -> Assignment:
    return Assignment({f"c{at}": (Part(uuid, index, core, 1024),) for at, (uuid, index, core) in enumerate(parts)})


def test_nodes_speak_by_gpu_and_pods_are_asked_about() -> None:
    assert by_pod({"GPU-b": {"one": 100}, "GPU-a": {"one": 100, "two": 30}}) == {
        "one": (("GPU-a", 100), ("GPU-b", 100)),
        "two": (("GPU-a", 30),),
    }


def test_what_agrees() -> None:
    both = said(("GPU-a", 0, 30), ("GPU-b", 1, 50))
    assert agrees(both, (("GPU-a", 30), ("GPU-b", 50)), GPUS)
    assert agrees(both, (("GPU-a", 30),), GPUS), "its second container has not come yet"
    assert agrees(said(("", 1, 30)), (("GPU-b", 30),), GPUS), "gpu-admission knows indices alone"
    assert not agrees(said(("GPU-a", 0, 30)), (("GPU-b", 30),), GPUS)
    assert not agrees(said(("GPU-a", 0, 30)), (("GPU-a", 50),), GPUS)
    assert agrees(said(("GPU-a", 0, 30)), (("GPU-gone", 30),), GPUS), "nothing is known of that one"


def test_what_counts_then() -> None:
    given = as_given((("GPU-b", 30),), said(("GPU-a", 0, 30)), GPUS)
    assert given.held() == {("GPU-b", 1): (30, 1024)}
    assert as_given((("GPU-b", 30),), None, GPUS).held() == {("GPU-b", 1): (30, 0)}
    text = difference(said(("GPU-a", 0, 30)), (("GPU-b", 30),), GPUS)
    assert text == "its annotation says GPU 0, the node gave GPU 1; the GPU of the node counts"


async def gave(cluster: World, uuid: str, uid: str, core: int) -> None:
    await cluster.client.patch(GPUNode, "n1", {"status": {"held": {uuid: {uid: core}}}})


async def test_an_annotation_forged_after_the_bind_moves_nothing(cluster: World, running: Running) -> None:
    await cluster.node("n1", 2)
    ledger = running.leader.cluster.ledger
    await running.until(lambda: ledger.node("n1"))
    pod = await cluster.pod(gpu_pod("a", (60, 20)))
    assert await running.bind(pod, "n1") == ""
    uid = pod["metadata"]["uid"]
    await gave(cluster, "GPU-n1-0", uid, 60)
    await running.until(lambda: running.leader.cluster.gpunodes.get("n1").given)  # type: ignore[union-attr]
    assert ledger.node("n1").core == (40, 100) and not await cluster.events(DIFFERS)
    # No admission policy stops the tenant here, and the extender starts again afterwards.
    forged = {"node": "n1", "containers": {"c0": [{"uuid": "GPU-n1-1", "index": 1, "core": 60, "memory_mib": 5120}]}}
    patch = {"metadata": {"annotations": {names.ASSIGNMENT_ANNOTATION: json.dumps(forged)}}}
    await cluster.client.patch(Pod, "a", patch, "default")
    async with extender(cluster.client) as second:
        state = second.leader.cluster.ledger.node("n1")
        assert state is not None
        assert state.core == (40, 100) and state.memory == (MEMORY - 5120, MEMORY)
        second.well()
        await second.leader._recorder.flush()
    (event,) = await cluster.events(DIFFERS)
    assert event.involved_object.name == "a" and "says GPU 1, the node gave GPU 0" in event.message
    await cluster.delete("a")
    await running.until(lambda: ledger.node("n1").core == (100, 100))


async def test_of_a_pod_bound_past_the_extender_the_node_knows(cluster: World, running: Running) -> None:
    await cluster.node("n1", 2)
    ledger = running.leader.cluster.ledger
    await running.until(lambda: ledger.node("n1"))
    past = await cluster.pod(gpu_pod("past", (60, 20), nodeName="n1"))
    uid = past["metadata"]["uid"]
    await running.seen(uid)
    assert ledger.node("n1").core == (40, 100), "counted where it fits best"
    await gave(cluster, "GPU-n1-1", uid, 60)
    await running.until(lambda: ledger.node("n1").core == (100, 40))
    running.well()
    await cluster.client.patch(Pod, "past", {"metadata": {"labels": {"a": "b"}}}, "default")
    await cluster.delete("past")
    await running.until(lambda: ledger.node("n1").core == (100, 100))
    assert await cluster.events(DIFFERS) == []


async def test_a_share_that_kube_scheduler_binds_without_asking_gets_an_event_with_the_cure(
    cluster: World, running: Running
) -> None:
    await cluster.node("n1", 2)
    for pod in (gpu_pod("share", (60, 20)), gpu_pod("whole", whole=1)):
        made = await cluster.pod(pod)
        await running.until(lambda made=made: running.leader.cluster.by_uid.get(made["metadata"]["uid"]))
        await bind(cluster, made, "n1")
        await running.seen(made["metadata"]["uid"])
    await running.leader._recorder.flush()
    (event,) = await cluster.events(BYPASSED)
    assert event.involved_object.name == "share", "the kubelet counts whole GPUs by itself"
    assert "gpuplane run scheduler --print-config kube" in event.message
