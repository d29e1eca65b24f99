"""The dry run of `explain` agrees with the scheduler that carries it out: the same victims, the same place."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane import names
from gpuplane.explain.answer import Explanation, explain
from gpuplane.explain.evictions import EVICTS, LEAVING
from gpuplane.explain.reading import read
from gpuplane.sharing import of_pod
from kubekit.api.core import Pod
from tests.support.extender_world import Running, World, extender, gpu_pod
from tests.support.scheduled_pods import bound, ours
from tests.support.until import until_objects

NOW = "2026-01-01T00:00:00Z"
AT_ONCE = {"terminationGracePeriodSeconds": 0}


async def holder(cluster: World, name: str, core: int, gpu: int, priority: int, node: str, **spec: Any) -> None:
    meta = {"annotations": {names.GPU_UUIDS_ANNOTATION: f"GPU-{node}-{gpu}"}}
    pod = ours(gpu_pod(name, (core, 4), metadata=meta), priorityClassName=f"p{priority}", **{**AT_ONCE, **spec})
    await cluster.pod(pod)
    await bound(cluster, name)


async def explained(cluster: World, name: str) -> Explanation:
    return explain(*await read(cluster.client, "default", name), NOW)


@pytest.fixture
async def full(cluster: World) -> World:
    """Two nodes with two GPUs each, held by pods of three priorities; the scheduler that bound them has gone."""
    for priority in (0, 10, 1000):
        body = {"metadata": {"name": f"p{priority}"}, "value": priority}
        await cluster.client.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", None, body)
    async with extender(cluster.client, scheduler_name=names.SCHEDULER_NAME):
        for node in ("n1", "n2"):
            await cluster.node(node, 2)
        await holder(cluster, "a", 30, 0, 0, "n1")
        await holder(cluster, "b", 40, 0, 0, "n1")
        await holder(cluster, "c", 60, 1, 10, "n1")
        await holder(cluster, "d", 70, 0, 0, "n2")
        await holder(cluster, "e", 80, 1, 1000, "n2")
    return cluster


@pytest.mark.parametrize("core", [25, 50, 65, 100, 200])
async def test_the_scheduler_evicts_what_was_explained(full: World, core: int) -> None:
    await full.pod(ours(gpu_pod("urgent", (core, 4 if core < 100 else 0)), priorityClassName="p1000"))
    found = await explained(full, "urgent")
    before = {pod.metadata.name for pod in await full.client.list(Pod)}
    async with extender(full.client, scheduler_name=names.SCHEDULER_NAME):
        pods = await bound(full, "urgent")
    evicted = before - {pod.metadata.name for pod in await full.client.list(Pod)}
    assignment = of_pod(pods["urgent"])
    assert assignment is not None
    indices = sorted({part.index for parts in assignment.containers.values() for part in parts})
    place = f"{pods['urgent'].spec.node_name}/{','.join(map(str, indices))}"
    if found.evictions is None:
        assert (evicted, found.runs_on) == (set(), place)
        return
    assert (found.evictions.state, found.evictions.place) == (EVICTS, place)
    assert {one.pod for one in found.evictions.victims} == {f"default/{name}" for name in evicted}


async def test_a_gang_evicts_what_was_explained(full: World) -> None:
    for at in range(2):
        said = {names.GANG_ANNOTATION: "train", names.GANG_SIZE_ANNOTATION: "2"}
        pod = gpu_pod(f"train-{at}", (100, 0), metadata={"annotations": said})
        await full.pod(ours(pod, priorityClassName="p1000"))
    found = await explained(full, "train-0")
    assert found.gang is not None and found.evictions is not None and found.evictions.state == EVICTS
    before = {pod.metadata.name for pod in await full.client.list(Pod)}
    async with extender(full.client, scheduler_name=names.SCHEDULER_NAME):
        await bound(full, "train-0", "train-1")
    evicted = before - {pod.metadata.name for pod in await full.client.list(Pod)}
    assert {one.pod for one in found.evictions.victims} == {f"default/{name}" for name in evicted}


async def test_a_nomination_is_explained_while_its_victims_end(cluster: World, running: Running) -> None:
    for priority in (0, 1000):
        body = {"metadata": {"name": f"p{priority}"}, "value": priority}
        await cluster.client.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", None, body)
    await cluster.node("n1", 1)
    await holder(cluster, "slow", 60, 0, 0, "n1", terminationGracePeriodSeconds=600)
    await cluster.pod(ours(gpu_pod("urgent", (60, 4)), priorityClassName="p1000"))
    await until_objects(
        cluster.client,
        Pod,
        lambda pods: any(pod.metadata.name == "slow" and pod.metadata.deletion_timestamp for pod in pods),
    )
    found = await explained(cluster, "urgent")
    assert found.evictions is not None
    assert (found.evictions.state, found.evictions.place) == (LEAVING, "n1")
    assert [(one.pod, one.leaving) for one in found.evictions.victims] == [("default/slow", True)]
    await cluster.delete("slow")
    await bound(cluster, "urgent")
