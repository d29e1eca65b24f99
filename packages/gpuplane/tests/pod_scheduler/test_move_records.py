"""A new leader goes on with the moves of the one before it: places, budget and cool-down are recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.cli.contents import contents_of_others
from gpuplane.scheduler.defrag.limits import MoveLimits
from gpuplane.scheduler.defrag.records import TAKE_OVER_SECONDS, MoveRecord, MoveRecords, recorded_pod
from gpuplane.sharing import Assignment, of_pod
from kubekit.api.core import ConfigMap, Pod
from kubekit.api.raw import RawPod
from kubekit.errors import Retryable, Terminal
from kubekit.kube import SystemClock
from tests.support.extender_world import Running, World, account_client, extender, gpu_pod
from tests.support.fake_api import FakeApi, FakeClient, Fault
from tests.support.replaced_pods import Workloads, workloads
from tests.support.scheduled_pods import bound, ours, plain, refused
from tests.support.until import until, until_objects
from tests.support.virtual_time import VirtualClock, settle

BY_ITSELF = MoveLimits(automatic=True, after_seconds=0.0)


@pytest.fixture
async def sets(cluster: World) -> AsyncIterator[Workloads]:
    async with workloads(cluster.client) as made:
        yield made


async def records(cluster: World) -> list[dict[str, Any]]:
    """The recorded moves."""
    stored = await cluster.client.get(ConfigMap, names.MOVES_CONFIGMAP, "default")
    found: list[dict[str, Any]] = json.loads(stored.data[names.MOVES_KEY] or "[]")
    return found


async def all_ended(cluster: World) -> list[dict[str, Any]]:
    found = await records(cluster)
    return found if found and all(one.get("ended") for one in found) else []


def places(running: Running) -> list[str]:
    return [key for key, *_ in running.leader.cluster.ledger.pods() if key.startswith("place:")]


def gpus_of(pod: Pod) -> list[str]:
    assignment = of_pod(pod)
    assert assignment is not None
    return [uuid for uuid, _ in assignment.held()]


async def fragments(cluster: World, sets: Workloads, **spec: Any) -> None:
    """Two shares on two GPUs of one node, and a pod that waits for a whole GPU."""
    await cluster.node("n1", 2)
    await sets.place("a", 40, "n1", 0, **spec)
    await sets.place("b", 50, "n1", 1, **spec)
    await until_objects(cluster.client, Pod, lambda pods: [pod.status.phase for pod in pods] == ["Running"] * 2)
    await cluster.pod(ours(gpu_pod("train", whole=1)))


@pytest.mark.parametrize("ends", [True, False], ids=["gone", "terminating"])
async def test_a_new_leader_holds_place_and_room_of_a_move_that_began_by_itself(
    cluster: World, sets: Workloads, ends: bool
) -> None:
    """The leader ends after the eviction, before there is a replacement; no other pod gets the place or the room."""
    sets.creates, sets.ends = False, ends
    await fragments(cluster, sets, **({} if ends else {"terminationGracePeriodSeconds": 600}))
    async with extender(cluster.client, scheduler_name=names.SCHEDULER_NAME, moves=BY_ITSELF):
        await until(lambda: len(sets.deleted) == 1)
        if ends:
            # `train` would be bound to the room that is made.
            await bound(cluster, "train")
    async with extender(cluster.client, scheduler_name=names.SCHEDULER_NAME, moves=BY_ITSELF) as running:
        assert len(places(running)) == 1
        await cluster.pod(ours(gpu_pod("intruder", (30, 0))))
        await refused(cluster, "intruder")
        sets.creates = sets.ends = True
        sets.look()
        pods = await bound(cluster, "train")
        moved = await until_objects(
            cluster.client,
            Pod,
            lambda pods: [one for one in pods if names.MOVED_ANNOTATION in one.metadata.annotations],
        )
        assert {*gpus_of(moved[0]), *gpus_of(pods["train"])} == {"GPU-n1-0", "GPU-n1-1"}
        await running.until(lambda: not places(running))
        [record] = await until(lambda: all_ended(cluster))
        assert not record.get("failed") and not record.get("pod")
    assert len(sets.deleted) == 1


async def test_a_new_leader_knows_that_the_replacement_is_bound(cluster: World, sets: Workloads) -> None:
    """The leader ends before it has recorded the end of the move: nothing is held for it, and it is moved."""
    await fragments(cluster, sets)
    async with extender(cluster.client, scheduler_name=names.SCHEDULER_NAME, moves=BY_ITSELF):
        await bound(cluster, "train")
        [record] = await until(lambda: all_ended(cluster))
    before = {name: record[name] for name in record if name not in ("ended", "recorded")}
    # As it was when the pod was evicted.
    pod = {
        "metadata": {"name": "gone", "namespace": "default", "uid": record["uid"], "labels": {}},
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "app"}], "schedulerName": "gpuplane"},
        "status": {"phase": "Running"},
    }
    text = json.dumps([{**before, "pod": pod}])
    await cluster.client.patch(ConfigMap, names.MOVES_CONFIGMAP, {"data": {names.MOVES_KEY: text}}, "default")
    async with extender(cluster.client, scheduler_name=names.SCHEDULER_NAME, moves=BY_ITSELF) as running:
        assert places(running) == []
        assert running.leader.pods is not None
        mover = running.leader.pods.mover
        await running.until(lambda: mover.moved == 1)
        await until(lambda: all_ended(cluster))
    assert len(sets.deleted) == 1


async def test_budget_and_cool_down_outlive_the_leader(cluster: World, sets: Workloads) -> None:
    await fragments(cluster, sets)
    async with extender(cluster.client, scheduler_name=names.SCHEDULER_NAME, moves=BY_ITSELF):
        pods = await bound(cluster, "train")
        await until(lambda: all_ended(cluster))
    async with extender(cluster.client, scheduler_name=names.SCHEDULER_NAME, moves=BY_ITSELF) as running:
        assert running.leader.pods is not None
        mover = running.leader.pods.mover
        assert mover.budget.left(mover.unix_now()) == BY_ITSELF.per_hour - 1
        assert mover.cools_down(pods["train"].metadata.uid)
        assert not mover.cools_down(pods["b"].metadata.uid if "b" in pods else "another")


async def test_its_account_suffices_to_record_moves(cluster: World, sets: Workloads) -> None:
    await fragments(cluster, sets)
    async with account_client(cluster, pod_scheduler=True) as account:
        space = names.OPERATOR_NAMESPACE
        async with extender(account, scheduler_name=names.SCHEDULER_NAME, moves=BY_ITSELF, namespace=space):
            await bound(cluster, "train")
        stored = await cluster.client.get(ConfigMap, names.MOVES_CONFIGMAP, space)
        assert len(json.loads(stored.data[names.MOVES_KEY])) == 1
        # Else `gpuplane uninstall` would leave the namespace, for an object of others in it.
        assert f"configmaps/{names.MOVES_CONFIGMAP}" not in await contents_of_others(cluster.client, space)


async def test_no_pod_is_moved_where_moves_cannot_be_recorded(cluster: World, sets: Workloads) -> None:
    await fragments(cluster, sets)
    async with extender(cluster.client, scheduler_name=names.SCHEDULER_NAME, moves=BY_ITSELF, namespace="none") as one:
        await refused(cluster, "train")
        assert one.leader.pods is not None
        mover = one.leader.pods.mover
        await one.until(lambda: mover.why_not_recorded)
        await cluster.pod(ours(gpu_pod("later", (30, 0))))
        await bound(cluster, "later")
    assert sets.deleted == []


POD = {
    "metadata": {"name": "gone", "namespace": "default", "uid": "u", "labels": {}},
    "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "app"}], "schedulerName": "gpuplane"},
    "status": {"phase": "Running"},
}
PART = {"uuid": "GPU-n9-0", "index": 0, "core": 30, "memory_mib": 256}


@pytest.mark.parametrize(
    "wrong",
    [
        {"pod": {"spec": 5}},
        {"pod": {**POD, "metadata": {**POD["metadata"], "uid": "another"}}},
        {"pod": POD, "node": "n9"},
        {"pod": POD, "given": {"containers": {"main": [PART]}}},
        {"pod": POD, "until": 1e300},
        {"pod": POD, "began": -1e300, "counted": 1e300},
    ],
    ids=["unreadable", "another pod", "unknown node", "unknown GPU", "no end", "strange times"],
)
async def test_a_wrong_record_stops_no_scheduler(cluster: World, wrong: dict[str, Any]) -> None:
    await cluster.node("n1", 2)
    right = {
        "uid": "u",
        "owner": "o",
        "node": "n1",
        "given": {"containers": {}},
        "began": 1,
        "until": 9e9,
        "counted": 1,
    }
    body = {
        "metadata": {"name": names.MOVES_CONFIGMAP, "namespace": "default"},
        "data": {names.MOVES_KEY: json.dumps([{**right, **wrong}])},
    }
    await cluster.client.create(body, resource=ConfigMap.RESOURCE)
    async with extender(cluster.client, scheduler_name=names.SCHEDULER_NAME, moves=BY_ITSELF) as running:
        assert running.leader.pods is not None
        mover = running.leader.pods.mover
        assert mover.budget.left(mover.unix_now()) == BY_ITSELF.per_hour - 1
        await cluster.pod(ours(gpu_pod("p", (30, 0))))
        await bound(cluster, "p")


async def recorded_moves(cluster: World) -> list[dict[str, Any]]:
    """Records of moves of the running pods `a` and `b` from n1 to n2 that the scheduler has not decided."""
    found = []
    for at, name in enumerate(("a", "b")):
        raw = await cluster.client.get(RawPod, name, "default")
        given = of_pod(await cluster.get(name))
        assert given is not None
        [(container, _)] = given.containers.items()
        part = {"uuid": f"GPU-n2-{at}", "index": at, "core": 40 + 10 * at, "memory_mib": 15360}
        found.append(
            {
                "uid": raw.metadata.uid,
                "owner": name,
                "node": "n2",
                "given": {"containers": {container: [part]}},
                "began": 1,
                "until": 9e9,
                "counted": 1,
                "pod": recorded_pod(raw),
            }
        )
    return found


async def store(cluster: World, found: list[dict[str, Any]]) -> None:
    meta = {"name": names.MOVES_CONFIGMAP, "namespace": "default"}
    body = {"metadata": meta, "data": {names.MOVES_KEY: json.dumps(found)}}
    await cluster.client.create(body, resource=ConfigMap.RESOURCE)


async def test_records_of_more_moves_than_are_allowed_evict_no_more_pods(cluster: World, sets: Workloads) -> None:
    await cluster.node("n1", 2)
    await cluster.node("n2", 2)
    sets.creates = False
    await sets.place("a", 40, "n1", 0)
    await sets.place("b", 50, "n1", 1)
    await until_objects(cluster.client, Pod, lambda pods: [pod.status.phase for pod in pods] == ["Running"] * 2)
    found = await recorded_moves(cluster)
    await store(cluster, found)
    async with extender(cluster.client, scheduler_name=names.SCHEDULER_NAME, moves=MoveLimits(at_once=1)) as running:
        assert running.leader.pods is not None
        mover = running.leader.pods.mover
        await until(lambda: sets.deleted)
        assert mover.is_moving(found[1]["uid"])
        await cluster.pod(ours(gpu_pod("later", (30, 0))))
        await bound(cluster, "later")
        assert sets.deleted == [found[0]["uid"]]


async def test_a_pod_of_another_namespace_ends_no_move(cluster: World, sets: Workloads) -> None:
    """A user who can create pods can write the uid of any controller into them."""
    await fragments(cluster, sets)
    sets.creates = False
    async with extender(cluster.client, scheduler_name=names.SCHEDULER_NAME, moves=BY_ITSELF) as running:
        await until(lambda: sets.deleted and places(running))
        for name in ("a", "b"):
            owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": name, "controller": True}
            meta = {"namespace": "kube-system", "ownerReferences": [owner]}
            await cluster.pod(plain(f"forged-{name}", metadata=meta))
        await bound(cluster, "forged-a", "forged-b")
        assert len(places(running)) == 1


# -- the records alone -------------------------------------------------------------------------------------------------

MOVE = MoveRecord("u1", "o1", "n1", Assignment({}), began=5.0, until=100.0, counted=5.0, pod={"metadata": {}})


def made(api: FakeApi) -> MoveRecords:
    client: Any = FakeClient(api)
    client.records_fail = True
    return MoveRecords(client, VirtualClock(), "default")


async def test_a_write_of_an_earlier_leader_is_refused() -> None:
    api = FakeApi()
    first, second = made(api), made(api)
    assert not await first.take_over()
    first.put(MOVE)
    await first.save()
    assert await second.take_over()
    assert list(second) == [MOVE]
    first.put(msgspec.structs.replace(MOVE, uid="u2"))
    with pytest.raises(Terminal, match="another scheduler leads"):
        await first.save()
    third = made(api)
    await third.take_over()
    assert list(third) == [MOVE]


async def test_a_write_that_arrives_after_the_next_leader_has_read_is_refused() -> None:
    api = FakeApi()
    first, second = made(api), made(api)
    await first.take_over()
    api.faults.append(Fault.LATE)
    first.put(MOVE)
    with pytest.raises(Retryable):
        await first.save()
    await second.take_over()
    api.land()
    third = made(api)
    await third.take_over()
    assert list(second) == list(third) == []


async def test_a_write_without_an_answer_is_found_again() -> None:
    api = FakeApi()
    records = made(api)
    await records.take_over()
    api.faults.append(Fault.AFTER)
    records.put(MOVE)
    with pytest.raises(Retryable):
        await records.save()
    with pytest.raises(Retryable):  # it learns its version
        await records.save()
    await records.save()
    api.remove("configmaps", f"default/{names.MOVES_CONFIGMAP}")
    records.put(msgspec.structs.replace(MOVE, uid="u2"))
    with pytest.raises(Retryable):
        await records.save()
    await records.save()
    other = made(api)
    await other.take_over()
    assert [one.uid for one in other] == ["u1", "u2"]


@pytest.mark.parametrize("fault", [Fault.BROKEN, Fault.BEFORE])
async def test_pods_do_not_wait_for_records_that_cannot_be_written(fault: Fault) -> None:
    """As where a webhook of others refuses the write: the moves that were read are gone on with, no other begins."""
    api = FakeApi()
    first = made(api)
    await first.take_over()
    first.put(MOVE)
    await first.save()
    api.faults += [fault] * 1000
    clock = VirtualClock()
    client: Any = FakeClient(api)
    client.records_fail = True
    second = MoveRecords(client, clock, "default")
    taking = asyncio.create_task(second.take_over())
    await settle()
    assert not taking.done()
    await clock.advance(TAKE_OVER_SECONDS + 2.0)
    assert await taking
    assert list(second) == [MOVE]
    assert second.why_not.startswith("moves cannot be recorded: ")
    with pytest.raises(Terminal, match="cannot be recorded"):
        second.put(msgspec.structs.replace(MOVE, uid="u2"))
        await second.save()


async def test_records_that_cannot_be_read_are_left_out() -> None:
    api = FakeApi()
    meta = {"name": names.MOVES_CONFIGMAP, "namespace": "default"}
    api.put("configmaps", {"metadata": meta, "data": {names.MOVES_KEY: "[{]"}})
    records = made(api)
    assert not await records.take_over()
    assert (list(records), records.why_not) == ([], "")


def test_moves_are_forgotten_after_budget_and_cool_down() -> None:
    records = MoveRecords(None, SystemClock(), "default")  # type: ignore[arg-type] # nothing is written
    for uid, ended in (("under way", 0.0), ("old", 1000.0), ("new", 5000.0)):
        records.put(msgspec.structs.replace(MOVE, uid=uid, ended=ended, counted=ended))
    records.forget(1000.0 + 3631.0, 60.0)
    assert [one.uid for one in records] == ["under way", "new"]
    records.forget(5000.0 + 7000.0, 7200.0)
    assert [one.uid for one in records] == ["under way", "new"]


def test_a_record_has_no_environment_and_a_bound() -> None:
    pod = gpu_pod("p", (30, 0))
    pod["spec"]["containers"][0] |= {"env": [{"name": "PASSWORD", "value": "secret"}], "args": ["--token=secret"]}
    pod["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "secret", "mine": "1"}
    found = recorded_pod(msgspec.convert(pod, RawPod))
    assert "secret" not in json.dumps(found)
    assert found["spec"]["containers"][0]["resources"] == pod["spec"]["containers"][0]["resources"]
    pod["metadata"]["annotations"] = {"mine": "1" * (40 << 10)}
    with pytest.raises(Terminal, match="too large"):
        recorded_pod(msgspec.convert(pod, RawPod))
