"""Gangs of higher priority evict others, all or nothing; a gang that is evicted goes as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane import names
from gpuplane.scheduler.gangs.preempt import NOT_HELPFUL
from gpuplane.sharing import of_pod
from kubekit.api.core import Event, Pod
from packages.gpuplane.tests.pod_scheduler.test_preemption import left, priorities
from tests.support.extender_world import Running, World, gpu_pod
from tests.support.pod_groups import GangSource, join_gang
from tests.support.scheduled_pods import bound, ours, plain, refused
from tests.support.until import until_objects

SLOW = {"metadata": {"finalizers": ["example.com/slow"]}}
"""A pod that stays until the finalizer is removed."""


async def single(cluster: World, name: str, node: str = "", priority: str = "low", core: int = 100, **how: Any) -> str:
    """A pod that runs alone, on the node."""
    where = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    pod = gpu_pod(name, (core, 4 if core < 100 else 0), **how) if core else plain(name, "40", **how)
    await cluster.pod(ours(pod, priorityClassName=priority, terminationGracePeriodSeconds=0, **where))
    await bound(cluster, name)
    return name


async def gang(
    cluster: World,
    name: str,
    size: int,
    priority: str = "high",
    core: int = 100,
    nodes: tuple[str, ...] = (),
    **how: str,
) -> list[str]:
    """A gang of that size; `nodes` are those of its pods, one by one."""
    made = [f"{name}-{at}" for at in range(size)]
    for at, one in enumerate(made):
        pod = gpu_pod(one, (core, 4 if core < 100 else 0)) if core else plain(one, "40")
        join_gang(pod, GangSource.ANNOTATIONS, name, size, **how)
        where = {"nodeSelector": {"kubernetes.io/hostname": nodes[at]}} if nodes else {}
        await cluster.pod(ours(pod, priorityClassName=priority, terminationGracePeriodSeconds=0, **where))
    return made


async def add_nodes(cluster: World, **gpus: int) -> None:
    for name, count in gpus.items():
        await cluster.node(name, count, labels={"kubernetes.io/hostname": name}, gpunode=count > 0)
    await priorities(cluster, low=0, middle=10, high=1000, polite=2000)


async def leave(cluster: World, count: int) -> set[str]:
    """The pods that leave, once there are so many."""

    def leaving(pods: list[Pod]) -> set[str]:
        found = {pod.metadata.name for pod in pods if pod.metadata.deletion_timestamp is not None}
        return found if len(found) >= count else set()

    found: set[str] = await until_objects(cluster.client, Pod, leaving)
    return found


async def let_go(cluster: World, names_of: set[str]) -> None:
    for name in names_of:
        await cluster.client.patch(Pod, name, {"metadata": {"finalizers": None}}, "default")


async def test_the_fewest_pods_go_for_a_gang_on_one_node(cluster: World, running: Running) -> None:
    await add_nodes(cluster, n1=4, n2=4)
    for at in range(4):
        await single(cluster, f"full-{at}", "n1")
    await single(cluster, "one", "n2")
    made = await gang(cluster, "train", 4, required_topology="node")
    pods = await bound(cluster, *made)
    assert {pods[name].spec.node_name for name in made} == {"n2"}
    assert await left(cluster) == {*made, *(f"full-{at}" for at in range(4))}
    texts = await until_objects(
        cluster.client, Event, lambda events: [one.message for one in events if one.reason == "Preempted"]
    )
    assert len(texts) == 1 and texts[0].endswith("on node n2")


async def test_the_least_important_go(cluster: World, running: Running) -> None:
    """One pod of middle priority is in the way on one node, two of low priority on the other."""
    await add_nodes(cluster, n1=2, n2=2)
    await single(cluster, "middle", "n1", "middle")
    for name in ("low-0", "low-1"):
        await single(cluster, name, "n2")
    made = await gang(cluster, "train", 2, required_topology="node")
    await bound(cluster, *made)
    assert await left(cluster) == {*made, "middle"}


async def test_no_pod_goes_unless_the_whole_gang_fits(cluster: World, running: Running) -> None:
    await add_nodes(cluster, n1=4, n2=2)
    await single(cluster, "important", "n1", "high")
    for at in range(3):
        await single(cluster, f"low-{at}", "n1")
    made = await gang(cluster, "train", 6)
    assert NOT_HELPFUL in await refused(cluster, made[-1])
    assert await left(cluster) == {*made, "important", "low-0", "low-1", "low-2"}
    assert not await cluster.events("Preempted")


async def test_a_gang_that_must_not_preempt_waits(cluster: World, running: Running) -> None:
    await add_nodes(cluster, n1=2)
    await single(cluster, "low")
    made = await gang(cluster, "train", 2, "polite")
    assert "not eligible due to preemptionPolicy=Never." in await refused(cluster, made[-1])
    assert "low" in await left(cluster)


async def test_the_room_of_the_whole_gang_is_kept_while_victims_end(cluster: World, running: Running) -> None:
    await add_nodes(cluster, n1=2, n2=2)
    for name, node in (("a", "n1"), ("b", "n2")):
        await single(cluster, name, node, **SLOW)
    made = await gang(cluster, "train", 4)
    assert await leave(cluster, 2) == {"a", "b"}
    await cluster.pod(ours(gpu_pod("late", (100, 0)), priorityClassName="middle"))
    assert await refused(cluster, "late"), "two GPUs are free, and are not for it"
    theirs = await cluster.pod(gpu_pod("theirs", (20, 4)))
    assert not (await running.filter(theirs, ["n1", "n2"]))["NodeNames"]
    await let_go(cluster, {"a"})
    await until_objects(cluster.client, Pod, lambda pods: "a" not in {pod.metadata.name for pod in pods})
    assert not [pod for pod in await cluster.client.list(Pod) if pod.metadata.name in made and pod.spec.node_name]
    await let_go(cluster, {"b"})
    await bound(cluster, *made)
    running.well()


async def test_a_pod_of_the_gang_that_is_deleted_frees_the_room_of_all(cluster: World, running: Running) -> None:
    await add_nodes(cluster, n1=2)
    await single(cluster, "a", "n1", **SLOW)
    made = await gang(cluster, "train", 2)
    await leave(cluster, 1)
    await cluster.delete(made[0])
    await single(cluster, "late", "n1", "middle")
    await let_go(cluster, {"a"})


@pytest.mark.parametrize("gpus", [4, 2])
async def test_two_gangs_that_preempt_do_not_hold_each_other_up(cluster: World, running: Running, gpus: int) -> None:
    """With room for both both run; with room for one the other waits, and takes no more than the first."""
    await add_nodes(cluster, n1=gpus, n2=gpus)
    lows = {await single(cluster, f"low-{at}", **SLOW) for at in range(2 * gpus)}
    one = await gang(cluster, "one", 4)
    two = await gang(cluster, "two", 4)
    leaving = await leave(cluster, len(lows))
    assert leaving == lows
    await let_go(cluster, lows)
    if gpus == 4:
        await bound(cluster, *one, *two)
        return
    pods = await until_objects(
        cluster.client, Pod, lambda pods: pods if sum(bool(pod.spec.node_name) for pod in pods) == 4 else []
    )
    first = {pod.metadata.name for pod in pods if pod.spec.node_name}
    assert first in (set(one), set(two))
    for name in first:
        await cluster.end(name)
    await bound(cluster, *({*one, *two} - first))


async def test_shares_of_one_gpu_get_the_gpu_that_was_freed(cluster: World, running: Running) -> None:
    """The room is reserved on this GPU: a pod that arrives meanwhile does not take a part of it."""
    await add_nodes(cluster, n1=2)
    holders = {}
    for name, core in (("a", 60), ("b", 70), ("c", 30)):
        await single(cluster, name, "n1", "middle" if name != "a" else "low", core, **SLOW)
        found = of_pod((await bound(cluster, name))[name])
        assert found is not None
        holders[name] = {uuid for uuid, _ in found.held()}
    made = await gang(cluster, "train", 3, core=30, required_topology="gpu")
    assert await leave(cluster, 1) == {"a"}
    await let_go(cluster, {"a"})
    pods = await bound(cluster, *made)
    held = [of_pod(pods[name]) for name in made]
    assert {uuid for one in held if one is not None for uuid, _ in one.held()} == holders["a"]


async def test_a_disruption_budget_is_broken_last(cluster: World, running: Running) -> None:
    await add_nodes(cluster, n1=2, n2=2)
    labels = {"metadata": {"labels": {"app": "db"}}}
    await single(cluster, "guarded", "n1", **labels)
    for name in ("other-0", "other-1"):
        await single(cluster, name, "n2", "middle")
    budget = {
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "db"}}},
    }
    await cluster.client.request("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", None, budget)
    pods = running.leader.pods
    assert pods is not None
    await running.until(lambda: pods.budgets.items())
    made = await gang(cluster, "train", 2, required_topology="node")
    await bound(cluster, *made)
    assert await left(cluster) == {*made, "guarded"}


@pytest.mark.parametrize("core", [100, 0])
async def test_a_pod_evicts_the_whole_gang_or_another_pod(cluster: World, running: Running, core: int) -> None:
    """Two pods of a gang are more than one pod; where only the gang is in the way, all of it goes."""
    await add_nodes(cluster, **dict.fromkeys(("n1", "n2", "n3"), 1 if core else 0))
    await bound(cluster, *await gang(cluster, "low", 2, "low", core, nodes=("n1", "n2")))
    await single(cluster, "alone", "n3", core=core)
    await single(cluster, "urgent", priority="high", core=core)
    assert await left(cluster) == {"low-0", "low-1", "urgent"}
    await single(cluster, "more", priority="high", core=core)
    await until_objects(cluster.client, Pod, lambda pods: {pod.metadata.name for pod in pods} == {"urgent", "more"})


async def test_a_gang_evicts_a_gang_as_a_whole(cluster: World, running: Running) -> None:
    await add_nodes(cluster, n1=2, n2=2)
    await bound(cluster, *await gang(cluster, "low", 3, "low"))
    made = await gang(cluster, "train", 2)
    await bound(cluster, *made)
    assert await left(cluster) == set(made)


async def test_pods_beyond_the_size_of_a_gang_go_alone(cluster: World, running: Running) -> None:
    await add_nodes(cluster, n1=3)
    await bound(cluster, *await gang(cluster, "low", 2, "low"))
    extra = join_gang(gpu_pod("extra", (100, 0)), GangSource.ANNOTATIONS, "low", 2)
    await cluster.pod(ours(extra, priorityClassName="low", terminationGracePeriodSeconds=0))
    await bound(cluster, "extra")
    await single(cluster, "urgent", priority="high")
    remaining = await left(cluster)
    assert len(remaining) == 3 and "urgent" in remaining
    assert names.GANG_ANNOTATION in (await cluster.get(next(iter(remaining - {"urgent"})))).metadata.annotations
