"""Pods of higher priority evict others GPU by GPU: also where only fragments are in the way, and as few as possible."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane import names
from gpuplane.scheduler.nominations import REASON
from gpuplane.sharing import of_pod
from kubekit.api.core import Event, Pod
from kubekit.api.raw import RawPod
from tests.support.extender_world import Running, World, gpu_pod
from tests.support.scheduled_pods import bound, ours, plain, refused
from tests.support.until import until_objects

ENDS_AT_ONCE = {"terminationGracePeriodSeconds": 0}


async def priorities(cluster: World, **values: int) -> None:
    for name, value in values.items():
        body: dict[str, Any] = {"metadata": {"name": name}, "value": value}
        if name == "polite":
            body["preemptionPolicy"] = "Never"
        await cluster.client.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", None, body)


async def placed(cluster: World, name: str, core: int, gpu: int, priority: str = "low", **spec: Any) -> None:
    """A pod of ours that holds a part of one GPU of n1. It ends at once, since no kubelet is there to end it."""
    meta = {"annotations": {names.GPU_UUIDS_ANNOTATION: f"GPU-n1-{gpu}"}, **spec.pop("metadata", {})}
    await cluster.pod(ours(gpu_pod(name, (core, 4), metadata=meta), priorityClassName=priority, **ENDS_AT_ONCE, **spec))
    await bound(cluster, name)


async def left(cluster: World) -> set[str]:
    return {pod.metadata.name for pod in await cluster.client.list(Pod)}


async def test_fragments_in_the_way_are_joined_by_one_eviction(cluster: World, running: Running) -> None:
    """40% + 40% are free: enough for kube-scheduler's count, which evicts no pod and lets the 60% wait."""
    await cluster.node("n1", 2)
    await priorities(cluster, low=0, high=1000)
    await placed(cluster, "a", 60, 0)
    await placed(cluster, "b", 60, 1)
    await cluster.pod(ours(gpu_pod("urgent", (60, 4)), priorityClassName="high"))
    pods = await bound(cluster, "urgent")
    assert of_pod(pods["urgent"]) is not None
    assert len(await left(cluster) & {"a", "b"}) == 1
    (text,) = await until_objects(
        cluster.client, Event, lambda events: [one.message for one in events if one.reason == "Preempted"]
    )
    assert text == f"Preempted by pod {pods['urgent'].metadata.uid} on node n1"


@pytest.mark.parametrize(
    ("holders", "core", "evicted"),
    [
        ([(30, 0, "low"), (30, 0, "low"), (60, 1, "low")], 80, {"p2"}),  # one pod of GPU 1 instead of two of GPU 0
        ([(60, 0, "middle"), (30, 1, "low"), (30, 1, "low")], 80, {"p1", "p2"}),  # two unimportant, not one important
        ([(80, 0, "high"), (70, 1, "low")], 60, {"p1"}),  # equal priority is no victim
        ([(50, 0, "low"), (40, 0, "low"), (90, 1, "middle")], 60, {"p0"}),  # the other 40% stay
        ([(50, 0, "low"), (50, 1, "low")], 200, {"p0", "p1"}),  # two whole GPUs
    ],
)
async def test_victims_are_the_fewest_and_least_important_of_one_gpu(
    cluster: World, running: Running, holders: list[tuple[int, int, str]], core: int, evicted: set[str]
) -> None:
    await cluster.node("n1", 2)
    await priorities(cluster, low=0, middle=10, high=1000)
    for at, (part, gpu, priority) in enumerate(holders):
        await placed(cluster, f"p{at}", part, gpu, priority)
    await cluster.pod(ours(gpu_pod("urgent", (core, 4 if core < 100 else 0)), priorityClassName="high"))
    await bound(cluster, "urgent")
    assert {f"p{at}" for at in range(len(holders))} - await left(cluster) == evicted


async def test_a_disruption_budget_is_broken_last(cluster: World, running: Running) -> None:
    await cluster.node("n1", 2)
    await priorities(cluster, low=0, high=1000)
    await placed(cluster, "guarded", 60, 0, metadata={"labels": {"app": "db"}})
    await placed(cluster, "other", 60, 1)
    budget = {
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "db"}}},
    }
    await cluster.client.request("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", None, budget)
    pods = running.leader.pods
    assert pods is not None
    await running.until(lambda: pods.budgets.items())
    await cluster.pod(ours(gpu_pod("urgent", (60, 4)), priorityClassName="high"))
    await bound(cluster, "urgent")
    assert "guarded" in await left(cluster)


async def test_a_pod_that_must_not_preempt_waits(cluster: World, running: Running) -> None:
    await cluster.node("n1", 1)
    await priorities(cluster, low=0, polite=1000)
    await placed(cluster, "a", 60, 0)
    await cluster.pod(ours(gpu_pod("urgent", (60, 4)), priorityClassName="polite"))
    assert "not eligible due to preemptionPolicy=Never." in await refused(cluster, "urgent")
    assert "a" in await left(cluster)


async def test_without_victims_the_message_says_so(cluster: World, running: Running) -> None:
    await cluster.node("n1", 1)
    await cluster.pod(ours(gpu_pod("a", (60, 4))))
    await bound(cluster, "a")
    await cluster.pod(ours(gpu_pod("b", (60, 4))))
    assert (await refused(cluster, "b")).endswith(
        "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    )


async def test_the_room_is_kept_while_victims_end(cluster: World, running: Running) -> None:
    await cluster.node("n1", 2)
    await priorities(cluster, low=0, middle=10, high=1000)
    await placed(cluster, "a", 50, 0, metadata={"finalizers": ["example.com/slow"]})
    await placed(cluster, "b", 50, 1, "high")
    await cluster.pod(ours(gpu_pod("urgent", (60, 4)), priorityClassName="high"))
    await until_objects(
        cluster.client, Pod, lambda pods: [pod for pod in pods if pod.metadata.deletion_timestamp is not None]
    )
    await cluster.pod(ours(gpu_pod("late", (20, 4)), priorityClassName="middle"))
    assert REASON in await refused(cluster, "late")
    theirs = await cluster.pod(gpu_pod("theirs", (20, 4)))
    assert REASON in (await running.filter(theirs, ["n1"]))["FailedNodes"]["n1"]
    await cluster.client.patch(Pod, "a", {"metadata": {"finalizers": None}}, "default")
    await bound(cluster, "urgent", "late")
    running.well()


@pytest.mark.parametrize("gpus", [1, 0])
async def test_equal_pods_make_room_at_the_same_time(cluster: World, running: Running, gpus: int) -> None:
    await priorities(cluster, low=0, high=1000)
    meta = {"finalizers": ["example.com/slow"]}
    for node in ("n1", "n2"):
        await cluster.node(node, gpus, gpunode=gpus > 0)
        name = f"low-{node}"
        await cluster.pod(
            ours(gpu_pod(name, (60, 4), metadata=meta), priorityClassName="low")
            if gpus
            else plain(name, "40", metadata=meta, priorityClassName="low")
        )
        await bound(cluster, name)
    for name in ("urgent", "equal"):
        pod = ours(gpu_pod(name, (60, 4))) if gpus else plain(name, "40")
        await cluster.pod(ours(pod, priorityClassName="high"))
    await until_objects(
        cluster.client, Pod, lambda pods: sum(pod.metadata.deletion_timestamp is not None for pod in pods) == 2
    )
    nominated = await until_objects(
        cluster.client, RawPod, lambda pods: {pod.status.get("nominatedNodeName") for pod in pods} - {None}
    )
    assert nominated == {"n1", "n2"}


async def test_pods_without_gpus_preempt_too(cluster: World, running: Running) -> None:
    await cluster.node("n1", 0, gpunode=False)
    await priorities(cluster, low=0, high=1000)
    await cluster.pod(plain("a", "40", priorityClassName="low", **ENDS_AT_ONCE))
    await bound(cluster, "a")
    await cluster.pod(plain("urgent", "40", priorityClassName="high"))
    await bound(cluster, "urgent")
    assert "a" not in await left(cluster)
