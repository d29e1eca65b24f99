"""The embedded cluster's own scheduler, told to call the extender by the configuration that gpuplane prints."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import yaml

from gpuplane import names
from gpuplane.scheduler.configuration import printed
from gpuplane.sharing import Ledger, of_pod, violations
from kubekit.api.core import Event, Pod
from tests.support.extender_world import PATIENCE, Running, World, extender, gpu_pod
from tests.support.until import until_objects
from tinykube.scheduler import Scheduler
from tinykube.scheduler.config_file import parse

SHARES = [(10, 4), (20, 8), (25, 15), (30, 20), (40, 20), (50, 30), (70, 30)]


@contextlib.asynccontextmanager
async def scheduler(cluster: World, running: Running) -> AsyncIterator[Scheduler]:
    config = yaml.safe_load(printed("kube", f"http://127.0.0.1:{running.port}"))
    made = Scheduler(cluster.server.registry, parse(yaml.safe_dump(config)))
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def scheduling(cluster: World, running: Running) -> AsyncIterator[None]:
    async with scheduler(cluster, running):
        yield


async def pods_once(cluster: World, wanted: Callable[[list[Pod]], Any]) -> list[Pod]:
    """The pods once they are as wanted."""
    (pods,) = await until_objects(
        cluster.client, Pod, lambda pods: (pods,) if wanted(pods) else None, seconds=PATIENCE * 3
    )
    return list(pods)


def on_a_node(count: int) -> Callable[[list[Pod]], Any]:
    return lambda pods: sum(bool(pod.spec.node_name) for pod in pods) == count


async def verdict(cluster: World, running: Running) -> list[str]:
    """The checker's, of a ledger made from nothing but what stands in the cluster now."""
    ledger = Ledger()
    for state in running.leader.cluster.ledger.nodes():
        ledger.set_node(state.name, state.gpus)
    for pod in await cluster.client.list(Pod):
        if pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed"):
            assignment = of_pod(pod)
            assert assignment is not None, f"{pod.metadata.name} has no share"
            ledger.hold(pod.metadata.uid, pod.spec.node_name, assignment)
    return violations(ledger)


async def test_a_burst_of_mixed_shares_is_bound_and_nothing_is_given_twice(
    cluster: World, running: Running, scheduling: None
) -> None:
    # With room to spare: in which order refused pods are tried again is chance, and whole GPUs may come last.
    for index in range(14):
        await cluster.node(f"n{index}", 4)
    mixed = random.Random(5)
    pods = [gpu_pod(f"p{index}", mixed.choice(SHARES)) for index in range(80)] + [
        gpu_pod(f"w{index}", whole=mixed.choice([1, 2])) for index in range(4)
    ]
    mixed.shuffle(pods)
    await asyncio.gather(*(cluster.pod(pod) for pod in pods))
    await pods_once(cluster, on_a_node(len(pods)))
    assert await verdict(cluster, running) == []
    running.well()


async def test_who_waits_is_told_why_and_woken_when_a_share_is_free(
    cluster: World, running: Running, scheduling: None
) -> None:
    await cluster.node("n1", 2)
    for name in ("first", "second"):
        await cluster.pod(gpu_pod(name, (60, 20)))
    await pods_once(cluster, on_a_node(2))
    await cluster.pod(gpu_pod("third", (60, 20)))  # there are 80% left, on no single GPU
    message = "0/1 nodes are available: 1 no GPU has 60 percent core and 5120 MiB together."
    await pods_once(cluster, lambda pods: any(message in c.message for pod in pods for c in pod.status.conditions))
    await cluster.end("first")
    await pods_once(cluster, on_a_node(3))
    assert await verdict(cluster, running) == []


async def test_a_gpu_that_recovers_wakes_who_waits_though_no_pod_changed(
    cluster: World, running: Running, scheduling: None
) -> None:
    await cluster.node("n1", 1)
    await cluster.set_gpus("n1", 1, health={"GPU-n1-0": "Xid 79"})
    await cluster.pod(gpu_pod("waits", (60, 20)))
    await running.until(lambda: len(running.leader.requeuer) == 1)
    await cluster.set_gpus("n1", 1)
    await pods_once(cluster, on_a_node(1))
    assert running.leader.requeuer.touched == 1
    node: Any = cluster.server.registry.get("nodes", "", "n1")
    assert names.SHARE_FREED_ANNOTATION in node["metadata"]["annotations"]


async def test_describe_of_a_pod_over_quota_says_what_is_used_and_by_whom(
    cluster: World, running: Running, scheduling: None
) -> None:
    await cluster.quota('{"default": {"quota": {"T4": 1}}}')
    await running.until(lambda: running.leader.quotas("default"))
    await cluster.node("n1", 2, labels={names.QUOTA_MODEL_LABEL: "T4"})
    await cluster.pod(gpu_pod("first", (80, 20)))
    await pods_once(cluster, on_a_node(1))
    await cluster.pod(gpu_pod("second", (60, 20)))
    why = "1 ExceedsGPUQuota: namespace default uses 0.8 of 1 T4 (first 0.8), and this pod asks 0.6"
    await pods_once(cluster, lambda pods: any(why in c.message for pod in pods for c in pod.status.conditions))
    events = await cluster.client.list(Event)
    assert any(why in event.message for event in events if event.involved_object.name == "second")
    await cluster.quota('{"default": {"quota": {"T4": 2}}}')
    await pods_once(cluster, on_a_node(2))


async def test_an_important_pod_gets_the_share_of_a_lesser_one(
    cluster: World, running: Running, scheduling: None
) -> None:
    await cluster.node("n1", 2)
    for name, value in (("low", 1), ("high", 1000)):
        priority = {"metadata": {"name": name}, "value": value}
        await cluster.client.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", None, priority)
    for index in range(2):
        await cluster.pod(gpu_pod(f"low{index}", (60, 20), priorityClassName="low"))
    await pods_once(cluster, on_a_node(2))
    await cluster.pod(gpu_pod("high", (90, 20), priorityClassName="high"))

    def evicted(pods: list[Pod]) -> bool:
        return any(pod.metadata.deletion_timestamp for pod in pods) or len(pods) == 2

    pods = await pods_once(cluster, evicted)
    for pod in pods:
        if pod.metadata.deletion_timestamp:
            await cluster.delete(pod.metadata.name)
    pods = await pods_once(cluster, lambda pods: any(p.metadata.name == "high" and p.spec.node_name for p in pods))
    assert len(pods) == 2
    assert await verdict(cluster, running) == []


async def test_a_second_extender_goes_on_where_the_first_ended(cluster: World, running: Running) -> None:
    await cluster.node("n1", 1)
    pod = await cluster.pod(gpu_pod("a", (60, 20)))
    await running.until(lambda: running.leader.cluster.ledger.node("n1"))
    assert await running.bind(pod, "n1") == ""
    async with extender(cluster.client) as second:
        state = second.leader.cluster.ledger.node("n1")
        assert state is not None and state.core == (40,)
        second.well()
