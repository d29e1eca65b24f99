"""Moves that are carried out: a place first, then an eviction; nothing is held for good, no pod is evicted twice."""

from __future__ import annotations

import datetime
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpuplane import names
from gpuplane.scheduler.defrag.limits import MoveLimits
from gpuplane.scheduler.pods.movable import MoveOrder, order_text
from gpuplane.sharing import of_pod
from kubekit.api.core import ConfigMap, Event, Pod
from kubekit.api.raw import RawBudget
from tests.support.extender_world import Running, World, extender, gpu_pod
from tests.support.replaced_pods import Workloads, workloads
from tests.support.scheduled_pods import bound, ours, refused
from tests.support.until import until, until_objects

NOW = MoveLimits(automatic=True, after_seconds=0.0)


@pytest.fixture
async def sets(cluster: World) -> AsyncIterator[Workloads]:
    async with workloads(cluster.client) as made:
        yield made


async def fragments(cluster: World, sets: Workloads, **more: Any) -> None:
    """Two shares on two GPUs of one node, so that no whole GPU is free."""
    await cluster.node("n1", 2)
    await sets.place("a", 40, "n1", 0, **more)
    await sets.place("b", 50, "n1", 1)
    await running_pods(cluster, 2)


async def running_pods(cluster: World, count: int) -> list[Pod]:
    """The running pods, once there are so many."""

    def enough(pods: list[Pod]) -> list[Pod]:
        found = [pod for pod in pods if pod.status.phase == "Running" and not pod.metadata.deletion_timestamp]
        return found if len(found) == count else []

    found: list[Pod] = await until_objects(cluster.client, Pod, enough)
    return found


async def order(cluster: World, name: str, node: str, *gpus: int, seconds: float = 60.0, room_for: str = "") -> None:
    """Have a pod moved, as `gpuplane defrag` does."""
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    text = order_text(
        MoveOrder(node, end.strftime("%Y-%m-%dT%H:%M:%SZ"), tuple(f"GPU-{node}-{gpu}" for gpu in gpus), room_for, "n1")
    )
    patch = {"metadata": {"annotations": {names.MOVE_ANNOTATION: text}}}
    await cluster.client.patch(Pod, name, patch, "default")


def gpus_of(pod: Pod) -> list[str]:
    assignment = of_pod(pod)
    assert assignment is not None
    return [uuid for uuid, _ in assignment.held()]


def of_set(pods: list[Pod], name: str) -> Pod:
    [found] = [pod for pod in pods if pod.metadata.labels.get("app") == name]
    return found


def holds_nothing(running: Running) -> bool:
    return all(not key.startswith("place:") for key, *_ in running.leader.cluster.ledger.pods())


async def test_an_ordered_move_gives_the_waiting_pod_its_room(
    cluster: World, sets: Workloads, running: Running
) -> None:
    await fragments(cluster, sets)
    await cluster.pod(ours(gpu_pod("train", whole=1)))
    await refused(cluster, "train")
    await order(cluster, "a", "n1", 1, room_for="default/train")
    pods = await bound(cluster, "train")
    assert gpus_of(pods["train"]) == ["GPU-n1-0"]
    moved = of_set(await running_pods(cluster, 3), "a")
    assert (moved.metadata.name != "a", gpus_of(moved)) == (True, ["GPU-n1-1"])
    assert names.MOVED_ANNOTATION in moved.metadata.annotations
    await running.until(lambda: holds_nothing(running))
    assert len(sets.deleted) == 1
    events = await until_objects(
        cluster.client, Event, lambda found: [one.message for one in found if one.reason == "Moved"]
    )
    assert events == ["Moved to n1: its replacement is bound"]


async def test_a_waiting_pod_gets_room_by_itself_if_moves_are_automatic(cluster: World, sets: Workloads) -> None:
    await fragments(cluster, sets)
    async with extender(cluster.client, scheduler_name=names.SCHEDULER_NAME, moves=NOW) as running:
        await cluster.pod(ours(gpu_pod("train", whole=1)))
        await bound(cluster, "train")
        pods = await running_pods(cluster, 3)
        assert sorted(gpus_of(of_set(pods, "a")) + gpus_of(of_set(pods, "b"))) == ["GPU-n1-1"] * 2
        assert len(sets.deleted) == 1
        running.well()


async def test_nothing_moves_by_itself_without_leave(cluster: World, sets: Workloads, running: Running) -> None:
    await fragments(cluster, sets)
    await cluster.pod(ours(gpu_pod("train", whole=1)))
    await refused(cluster, "train")
    async with extender(cluster.client, scheduler_name=names.SCHEDULER_NAME):  # another start finds it waiting
        await refused(cluster, "train")
    assert sets.deleted == []


async def test_the_place_is_held_until_the_replacement_comes(cluster: World, sets: Workloads, running: Running) -> None:
    """The pod is gone and its controller is slow: a pod that would fit the place has to wait."""
    await fragments(cluster, sets)
    sets.creates = False
    await order(cluster, "a", "n1", 1)
    await until_objects(cluster.client, Pod, lambda pods: len(pods) == 1)
    await cluster.pod(ours(gpu_pod("large", (100, 0))))  # takes GPU 0, which is free now
    await bound(cluster, "large")
    await cluster.pod(ours(gpu_pod("intruder", (50, 0))))
    await refused(cluster, "intruder")
    sets.creates = True
    sets.look()
    pods = await running_pods(cluster, 3)
    assert gpus_of(of_set(pods, "a")) == ["GPU-n1-1"]
    assert not (await cluster.get("intruder")).spec.node_name


async def test_the_place_is_free_at_the_end_of_the_time(cluster: World, sets: Workloads, running: Running) -> None:
    await fragments(cluster, sets)
    sets.creates = False
    await order(cluster, "a", "n1", 1, seconds=3.0)
    await until_objects(cluster.client, Pod, lambda pods: len(pods) == 1)
    await cluster.pod(ours(gpu_pod("large", (100, 0))))
    await bound(cluster, "large")
    await cluster.pod(ours(gpu_pod("intruder", (50, 0))))
    await bound(cluster, "intruder")
    await running.until(lambda: holds_nothing(running))
    events = await until_objects(
        cluster.client, Event, lambda found: [one.message for one in found if one.reason == "NotMoved"]
    )
    assert events == ["Not moved to n1: its replacement was not bound in time"]


async def test_a_pod_that_a_disruption_budget_protects_stays(cluster: World, sets: Workloads, running: Running) -> None:
    await fragments(cluster, sets)
    await budget(cluster, "a", 0)
    await order(cluster, "a", "n1", 1)
    events = await until_objects(
        cluster.client, Event, lambda found: [one.message for one in found if one.reason == "NotMoved"]
    )
    assert events == ["Not moved to n1: the pod stays: disruption budget"]
    assert sets.deleted == []


async def budget(cluster: World, app: str, allowed: int) -> None:
    """A disruption budget for the pods of a set that allows so many evictions, as its controller reports it."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": app, "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}},
    }
    await cluster.client.create(body, resource=RawBudget.RESOURCE)
    status = {"status": {"disruptionsAllowed": allowed, "observedGeneration": 1}}
    await cluster.client.patch(RawBudget, app, status, "default", subresource="status")


@pytest.mark.parametrize(
    ("name", "node", "gpu", "why"),
    [
        ("keeps", "n1", 1, "the pod stays: no gpuplane.dev/movable"),
        ("a", "n9", 1, "its replacement would not fit n9 now"),
        ("a", "n1", 2, "its replacement would not fit n1 now"),
    ],
)
async def test_an_order_that_is_not_proved_is_refused(
    cluster: World, sets: Workloads, running: Running, name: str, node: str, gpu: int, why: str
) -> None:
    await fragments(cluster, sets)
    await sets.place("keeps", 10, "n1", 0, metadata={"movable": False})
    await running_pods(cluster, 3)
    await order(cluster, name, node, gpu)
    events = await until_objects(
        cluster.client, Event, lambda found: [one.message for one in found if one.reason == "NotMoved"]
    )
    assert events == [f"Not moved to {node}: {why}"]
    assert sets.deleted == []


async def test_orders_beyond_the_budget_wait(cluster: World, sets: Workloads) -> None:
    """One an hour: one move is made, the other waits, also where another scheduler starts."""
    await cluster.node("n1", 4)
    for at, name in enumerate("abcd"):
        await sets.place(name, 30, "n1", at)
    await running_pods(cluster, 4)
    limits = MoveLimits(per_hour=1)
    async with extender(cluster.client, scheduler_name=names.SCHEDULER_NAME, moves=limits) as running:
        await order(cluster, "a", "n1", 1)
        assert running.leader.pods is not None
        mover = running.leader.pods.mover
        await running.until(lambda: mover.moved == 1)
        await order(cluster, "c", "n1", 3)
        await cluster.pod(ours(gpu_pod("later", (30, 0))))
        await bound(cluster, "later")  # the watch has delivered the order before
        assert (mover.moved, len(sets.deleted), mover.budget.left(mover.unix_now())) == (1, 1, 0)
        await until(lambda: recorded(cluster, ended=1))
    async with extender(cluster.client, scheduler_name=names.SCHEDULER_NAME, moves=limits) as running:
        assert running.leader.pods is not None
        mover = running.leader.pods.mover
        await cluster.pod(ours(gpu_pod("last", (30, 0))))
        await bound(cluster, "last")
        assert (mover.moved, len(sets.deleted), mover.budget.left(mover.unix_now())) == (0, 1, 0)


async def recorded(cluster: World, ended: int = 0) -> bool:
    """Return whether so many moves are recorded, all of which have ended."""
    stored = await cluster.client.get(ConfigMap, names.MOVES_CONFIGMAP, "default")
    records = json.loads(stored.data[names.MOVES_KEY] or "[]")
    return len(records) == ended and all(one.get("ended") for one in records)


async def test_a_scheduler_that_starts_again_holds_the_place_of_a_pod_that_leaves(
    cluster: World, sets: Workloads
) -> None:
    """It ends after the eviction; the next one follows the order of the pod that terminates, and evicts nothing."""
    await fragments(cluster, sets)
    sets.ends = sets.creates = False
    slow = {"terminationGracePeriodSeconds": 600}
    await sets.place("c", 10, "n1", 0, **slow)
    await running_pods(cluster, 3)
    async with extender(cluster.client, scheduler_name=names.SCHEDULER_NAME):
        await order(cluster, "c", "n1", 1)
        await until(lambda: len(sets.deleted) == 1)
    async with extender(cluster.client, scheduler_name=names.SCHEDULER_NAME) as running:
        await running.until(lambda: not holds_nothing(running))
        sets.ends = sets.creates = True
        sets.look()
        await until_objects(
            cluster.client,
            Pod,
            lambda pods: [pod for pod in pods if names.MOVED_ANNOTATION in pod.metadata.annotations],
        )
        await running.until(lambda: holds_nothing(running))
    assert len(sets.deleted) == 1
    assert gpus_of(of_set(await running_pods(cluster, 3), "c")) == ["GPU-n1-1"]


async def test_a_refused_eviction_is_tried_again_until_the_budget_allows_it(
    cluster: World, sets: Workloads, running: Running
) -> None:
    await fragments(cluster, sets)
    assert running.leader.pods is not None
    mover = running.leader.pods.mover
    mover.read_budgets = list  # as if no watch had delivered the budget yet
    await budget(cluster, "a", 0)
    await order(cluster, "a", "n1", 1)
    await running.until(lambda: not holds_nothing(running))
    assert sets.deleted == []
    await cluster.client.delete(RawBudget, "a", "default")
    await running.until(lambda: mover.moved == 1)
