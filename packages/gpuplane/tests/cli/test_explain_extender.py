"""`explain` agrees with the extender and a scheduler: they do as it says, and its cures help."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuplane import names
from gpuplane.explain.answer import Explanation, explain
from gpuplane.explain.reading import read
from gpuplane.scheduler.configuration import printed
from gpuplane.sharing import of_pod
from kubekit.api.core import Node, Pod
from kubekit.kube import SystemClock
from tests.support.extender_world import PATIENCE, World, extender, gpu_pod, world
from tests.support.until import until_objects
from tinykube.scheduler import Scheduler
from tinykube.scheduler.config_file import parse


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """An API server, an extender, and the embedded cluster's scheduler that asks it."""
    async with world(tmp_path) as made, extender(made.client) as running:
        config = yaml.safe_load(printed("kube", f"http://127.0.0.1:{running.port}"))
        task = asyncio.create_task(Scheduler(made.server.registry, parse(yaml.safe_dump(config))).run())
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def explained(cluster: World, name: str) -> Explanation:
    pod, facts = await read(cluster.client, "default", name)
    return explain(pod, facts, SystemClock().wall())


async def pod_once(cluster: World, name: str, holds: Callable[[Pod], Any]) -> Pod:
    """The pod once it is so."""
    found: Pod = await until_objects(
        cluster.client,
        Pod,
        lambda pods: next((pod for pod in pods if holds(pod)), None),
        namespace="default",
        fields=f"metadata.name={name}",
        seconds=PATIENCE * 2,
    )
    return found


def refused(pod: Pod) -> bool:
    return any("nodes are available" in condition.message for condition in pod.status.conditions)


def bound(pod: Pod) -> str:
    return pod.spec.node_name


def at(pod: Pod) -> str:
    """Return the place of the pod, as cures write it."""
    assignment = of_pod(pod)
    assert assignment is not None
    indices = sorted({part.index for parts in assignment.containers.values() for part in parts})
    return f"{pod.spec.node_name}/{','.join(map(str, indices))}"


@pytest.fixture
async def full(cluster: World) -> World:
    """Two nodes with two T4 each: 40% and 5 GiB are free of every GPU; and a pod that waits for 50% and 8 GiB."""
    for node in ("n1", "n2"):
        await cluster.node(node, 2)
    for index in range(4):
        await cluster.pod(gpu_pod(f"p{index}", (60, 40)))
        await pod_once(cluster, f"p{index}", bound)
    await cluster.pod(gpu_pod("waits", (50, 32)))
    await pod_once(cluster, "waits", refused)
    return cluster


async def test_it_counts_what_the_scheduler_counts(full: World) -> None:
    found = await explained(full, "waits")
    (tally,) = found.node_reasons
    assert (tally.count, found.gpus, found.can_ever_run) == (2, 4, True)
    pod = await full.get("waits")
    reason = tally.reason.replace("%", " percent")  # kube-scheduler would take % for a format
    assert any(f"2 {reason}" in c.message for c in pod.status.conditions), [c.message for c in pod.status.conditions]
    assert {(gpu.core, gpu.memory_mib) for node in found.free for gpu in node.gpus} == {(40, 5120)}
    assert [(t.reason, t.missing) for t in found.gpu_reasons] == [("core", "10%")]


async def test_a_cure_comes_about(full: World) -> None:
    found = await explained(full, "waits")
    places = {
        cure.change.split(" ends")[0].rpartition("/")[2]: cure.place for cure in found.cures if "ends" in cure.change
    }
    ((gone, place),) = places.items()
    await full.end(gone)
    assert at(await pod_once(full, "waits", bound)) == place


async def test_a_smaller_pod_is_placed_where_it_is_said_to_be(full: World) -> None:
    await full.delete("waits")
    await full.pod(gpu_pod("other", (50, 16)))
    await pod_once(full, "other", refused)
    (cure,) = [one for one in (await explained(full, "other")).cures if one.change.startswith("ask 40% core")]
    await full.delete("other")
    await full.pod(gpu_pod("smaller", (40, 16)))
    assert at(await pod_once(full, "smaller", bound)) == cure.place


async def test_a_bound_pod_says_what_its_annotation_says(full: World) -> None:
    pod = await full.get("p0")
    found = await explained(full, "p0")
    assert (found.state, found.node) == ("placed", pod.spec.node_name)
    (held,) = found.held
    assert (held.gpu, held.core, held.memory_mib) == (at(pod), 60, 10240)


async def test_quota_counts_as_the_extender_counts_it(cluster: World) -> None:
    await cluster.node("n1", 2, labels={names.QUOTA_MODEL_LABEL: "T4"})
    await cluster.quota('{"default": {"quota": {"T4": 0.5}}}')
    await cluster.pod(gpu_pod("first", (50, 4)))
    await pod_once(cluster, "first", bound)
    await cluster.pod(gpu_pod("second", (20, 4)))
    pod = await pod_once(cluster, "second", refused)
    found = await explained(cluster, "second")
    assert found.quota == "exceeded"
    assert any(found.node_reasons[0].reason in condition.message for condition in pod.status.conditions)


# -- cures of the cluster and of the pod, carried out ------------------------------------------------------------------


async def waiting(cluster: World, pod: dict[str, Any]) -> dict[str, str]:
    """Create the pod, and return its cures once the scheduler has refused it: change -> place."""
    await cluster.pod(pod)
    await pod_once(cluster, pod["metadata"]["name"], refused)
    found = await explained(cluster, pod["metadata"]["name"])
    return {cure.change: cure.place for cure in found.cures}


async def made_again(cluster: World, pod: dict[str, Any]) -> str:
    """Delete the pod and make it again, as the cure of a pod says; return its place."""
    await cluster.delete(pod["metadata"]["name"])
    await cluster.pod(pod)
    return at(await pod_once(cluster, pod["metadata"]["name"], bound))


async def test_a_cordoned_node_takes_the_pod_once_it_is_uncordoned(cluster: World) -> None:
    await cluster.node("n1", 2)
    await cluster.client.patch(Node, "n1", {"spec": {"unschedulable": True}})
    cures = await waiting(cluster, gpu_pod("p", (50, 32)))
    await cluster.client.patch(Node, "n1", {"spec": {"unschedulable": None}})
    assert at(await pod_once(cluster, "p", bound)) == cures["kubectl uncordon n1"]


async def test_a_pod_that_tolerates_the_taint_is_placed(cluster: World) -> None:
    await cluster.node("n1", 2)
    taint = {"key": "team", "value": "x", "effect": "NoSchedule"}
    await cluster.client.patch(Node, "n1", {"spec": {"taints": [taint]}})
    cures = await waiting(cluster, gpu_pod("p", (50, 32)))
    tolerations = [{"key": "team", "operator": "Exists", "effect": "NoSchedule"}]
    again = gpu_pod("p", (50, 32), tolerations=tolerations)
    assert await made_again(cluster, again) == cures["tolerate team:NoSchedule"]


async def test_a_pod_without_its_selector_or_annotation_is_placed(cluster: World) -> None:
    await cluster.node("n1", 2)
    cures = await waiting(cluster, gpu_pod("tied", (50, 32), nodeSelector={"pool": "none"}))
    assert await made_again(cluster, gpu_pod("tied", (50, 32))) == cures["drop the nodeSelector"]
    wanted = {"annotations": {names.GPU_MODELS_ANNOTATION: "H100"}}
    cures = await waiting(cluster, gpu_pod("choosy", (30, 8), metadata=wanted))
    place = cures[f"drop the annotation {names.GPU_MODELS_ANNOTATION}"]
    assert await made_again(cluster, gpu_pod("choosy", (30, 8))) == place


async def test_another_node_takes_the_pod(full: World) -> None:
    cures = {cure.change: cure.place for cure in (await explained(full, "waits")).cures}
    assert cures["add a node like n1"] == "the new node"
    await full.node("n3", 2)
    assert (await pod_once(full, "waits", bound)).spec.node_name == "n3"


async def test_a_gpu_that_comes_back_takes_the_pod(cluster: World) -> None:
    await cluster.node("n1", 1)
    offered = {names.GPU_RESOURCE: "1", names.VCUDA_CORE: "100", names.VCUDA_MEMORY: "60"}

    async def counted(allocatable: dict[str, str]) -> None:
        await cluster.client.patch(Node, "n1", {"status": {"allocatable": allocatable}}, subresource="status")

    await cluster.set_gpus("n1", 1, health={"GPU-n1-0": "Xid 79: fallen off the bus"})
    await counted(dict.fromkeys(offered, "0"))
    cures = await waiting(cluster, gpu_pod("p", (50, 32)))
    place = cures["bring GPU 0 of n1 back: gpuplane status names the way"]
    await cluster.set_gpus("n1", 1)
    await counted(offered)
    assert at(await pod_once(cluster, "p", bound)) == place
