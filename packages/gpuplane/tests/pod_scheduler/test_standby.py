"""Two replicas: the standby follows the cluster and does nothing, and decides as soon as it has caught up.

Random histories kill the leader; its last Bindings reach the standby's watch late.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.scheduler.gangs.gang import digest, round_text
from gpuplane.scheduler.leader import Leader
from gpuplane.scheduler.policies import Chosen
from gpuplane.scheduler.standby import Mark, Standby
from gpuplane.sharing import violations
from kubekit.kube import EventRecorder, Forbidden
from packages.gpuplane.tests.extender.test_histories import DAY, PODS, live, random_step, step
from packages.gpuplane.tests.pod_scheduler.test_gang_histories import GangHistory
from packages.gpuplane.tests.pod_scheduler.test_histories import SchedulerHistory
from tests.support.extender_world import gpu_pod
from tests.support.fake_api import FakeApi, FakeClient, Fault
from tests.support.virtual_time import settle

LEADER_POD = {"metadata": {"name": "replica", "namespace": "gpu-operator"}, "status": {"phase": "Succeeded"}}


class CountingClient(FakeClient):
    """Counts what it is used for."""

    def __init__(self, api: FakeApi) -> None:
        super().__init__(api)
        self.lists = self.writes = 0

    def pages(self, *args: Any, **options: Any) -> Any:
        self.lists += 1
        return super().pages(*args, **options)

    async def request(self, method: str, *args: Any, **options: Any) -> bytes:
        self.writes += method != "GET"  # which asks what the API server has
        return await super().request(method, *args, **options)

    async def patch(self, *args: Any, **options: Any) -> Any:
        self.writes += 1
        return await super().patch(*args, **options)

    async def delete(self, *args: Any, **options: Any) -> None:
        self.writes += 1
        await super().delete(*args, **options)

    async def create(self, *args: Any, **options: Any) -> Any:
        self.writes += 1
        return await super().create(*args, **options)


class Replica:
    """A process of the scheduler; it follows the cluster from now on."""

    def __init__(self, history: SchedulerHistory, mark: Mark) -> None:
        self.client = CountingClient(history.api)
        client: Any = self.client
        self.recorder = EventRecorder(client, "test", clock=history.clock)
        self.made: list[Leader] = []
        self._history = history
        self.standby = Standby(self._make, mark)
        self.standby.begin()

    def _make(self) -> Leader:
        history, client = self._history, self.client
        lent: Any = client
        self.made.append(Leader(lent, self.recorder, Chosen(), history.clock, lambda: history.wall, "gpuplane"))
        return self.made[-1]

    async def end(self) -> None:
        await self.standby.aclose()
        await self.recorder.aclose()


class TwoReplicas(SchedulerHistory):
    """A leader and a standby, which takes over when the leader is killed."""

    replica: Replica | None = None
    standby: Replica | None = None

    async def mark(self) -> str:
        """As the new leader's write to its own pod; here the pod is gone again at once."""
        made = self.api.put("pods", LEADER_POD)
        del self.api.objects["pods"]["gpu-operator/replica"]
        return str(made["metadata"]["resourceVersion"])

    async def start(self) -> None:
        self.replica = self.standby or Replica(self, self.mark)
        await settle()
        self.ready = asyncio.Event()
        self.task = asyncio.create_task(self.replica.standby.lead(lambda leader: self.ready.set()))
        await settle()
        assert not self.ready.is_set(), "the watch has not delivered all that was there"
        self.api.deliver()
        async with asyncio.timeout(60):
            await self.ready.wait()
        (self.leader,) = self.replica.made
        self.standby = Replica(self, self.mark)
        await settle()

    async def crash(self) -> None:
        self.api.go_on()
        await self.kill()
        self.api.land()  # NB: and nothing is delivered
        await self.start()

    async def kill(self) -> None:
        assert self.replica is not None
        for task in (self.task, *self.binds):
            task.cancel()
        await asyncio.gather(self.task, *self.binds, return_exceptions=True)
        await self.replica.end()

    async def stop(self) -> None:
        await self.kill()
        if self.standby is not None:
            await self.standby.end()

    def check(self) -> None:
        super().check()
        assert self.standby is not None
        assert self.standby.client.writes == 0, "a standby writes nothing"
        (leader,) = self.standby.made
        assert violations(leader.cluster.ledger) == []
        assert len(leader.reservations) == 0
        assert not [pod for pod, _, _, reserved in leader.cluster.ledger.pods() if reserved]


class TwoReplicasWithGangs(GangHistory, TwoReplicas):
    """The same, with gangs of three."""

    def check(self) -> None:
        TwoReplicas.check(self)


HISTORIES = [TwoReplicas, TwoReplicasWithGangs]


@pytest.mark.parametrize("history", HISTORIES)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(st.one_of(step, st.just(("crash",))), max_size=60))
def test_short_histories(history: type[TwoReplicas], steps: list[tuple[Any, ...]]) -> None:
    asyncio.run(live(history(), steps))


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("fault", list(Fault))
def test_a_take_over_at_every_step(history: type[TwoReplicas], fault: Fault) -> None:
    async def crashing() -> None:
        for at in range(3, len(DAY) + 1):
            bad: Iterable[tuple[Any, ...]] = [("fault", fault)]
            await live(history(), [*DAY[:3], *bad, *DAY[3:at], ("crash",), *DAY[at:]])

    asyncio.run(crashing())


@pytest.mark.parametrize("history", HISTORIES)
def test_long_histories(history: type[TwoReplicas], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")
    dice = random.Random(3)
    made = history()
    days = (random_step(dice) if dice.random() < 0.97 else ("crash",) for _ in iter(lambda: made.count < PODS, False))
    asyncio.run(live(made, days))
    assert not [record for record in caplog.records if record.name.startswith("gpuplane")]


# -- a take-over ---------------------------------------------------------------------------------------------------
def waiting(api: FakeApi, *cores: int) -> list[str]:
    made = []
    for at, core in enumerate(cores):
        pod = gpu_pod(f"w{at}", (core, 16), namespace="free")
        pod["spec"]["schedulerName"] = "gpuplane"
        made.append(api.put("pods", pod)["metadata"]["name"])
    return made


def places(api: FakeApi) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in api.objects["pods"].values()}


async def test_a_take_over_reads_claims_alone_and_binds_what_waits_at_once() -> None:
    history = TwoReplicas()
    await history.start()
    standby = history.standby
    assert standby is not None
    await history.kill()
    made = waiting(history.api, *[60] * 4)
    history.api.deliver()
    await settle()
    assert set(places(history.api).values()) == {""}, "nobody leads"
    lists, now = standby.client.lists, history.clock.now()
    history.task = asyncio.create_task(standby.standby.lead(lambda leader: None))
    await settle()
    history.api.deliver()
    await settle()
    assert all(places(history.api)[name] for name in made)
    assert standby.client.lists == lists + 1, "no list was read but that of resource claims"
    assert history.clock.now() == now, "nothing was waited for"
    history.replica = standby
    await history.stop()


async def test_bindings_that_no_watch_has_delivered_are_waited_for() -> None:
    """Without that, the GPUs of the last Bindings would be allocated once more."""
    history = TwoReplicas()
    await history.start()
    waiting(history.api, *[60] * 8)
    history.api.deliver()
    await settle()
    assert sum(bool(node) for node in places(history.api).values()) == 6, "all GPUs of the cluster"
    await history.crash()
    await settle()
    history.check()
    assert sum(bool(node) for node in places(history.api).values()) == 6
    await history.stop()


async def test_without_the_right_to_write_to_its_pod_it_reads_the_cluster_again() -> None:
    async def forbidden() -> str:
        raise Forbidden("no patch of pods")

    history = TwoReplicas()
    replica = Replica(history, forbidden)
    await settle()
    before = replica.client.lists
    history.replica = replica
    history.task = asyncio.create_task(replica.standby.lead(lambda leader: None))
    await settle()
    assert len(replica.made) == 2 and replica.client.lists == 2 * before
    await history.stop()


@pytest.mark.parametrize("corrected", [False, True])
async def test_invalid_quotas_are_reported_by_the_next_leader(corrected: bool) -> None:
    history = TwoReplicas()
    await history.start()
    standby = history.standby
    assert standby is not None
    (leader,) = standby.made
    assert history.leader.quotas.invalid == leader.quotas.invalid == {}
    quota = history.api.objects["configmaps"]["kube-system/gpuquota"]
    history.api.put("configmaps", {**quota, "data": {"gpu_quota": "no JSON"}})
    history.api.deliver()
    await settle()
    assert set(leader.quotas.invalid) == {names.QUOTA_KEY}
    assert standby.client.writes == 0
    if corrected:
        history.api.put("configmaps", quota)
        history.api.deliver()
        await settle()
    await history.crash()
    await standby.recorder.flush()
    assert standby.client.writes == (1 if corrected else 2), "the records of moves are taken over; an event"
    await history.stop()


async def test_a_half_bound_gang_is_evicted_by_the_leader_only() -> None:
    history = TwoReplicasWithGangs()
    await history.start()
    standby = history.standby
    assert standby is not None
    await history.kill()
    history.wall = 0
    gang = {names.GANG_ANNOTATION: "g", names.GANG_SIZE_ANNOTATION: "2", names.GANG_TIMEOUT_ANNOTATION: "20"}
    for name in ("a", "b"):
        pod = gpu_pod(name, (200, 0), namespace="free")
        pod["metadata"]["annotations"] = dict(gang)
        pod["spec"]["schedulerName"] = "gpuplane"
        history.api.put("pods", pod)
    first, second = (history.api.objects["pods"][f"free/{name}"] for name in ("a", "b"))
    together = round_text([first["metadata"]["uid"], second["metadata"]["uid"]])
    assert digest(second["metadata"]["uid"]) in together
    binding = {
        "metadata": {"uid": first["metadata"]["uid"], "annotations": {names.GANG_ROUND_ANNOTATION: together}},
        "target": {"name": "n1"},
    }
    history.api.bind("free/a", binding)
    for name in ("n2", "n3"):
        history.api.remove("nodes", name)
    history.api.deliver()
    await settle()
    await history.clock.advance(600)
    assert standby.client.writes == 0
    assert "free/a" in history.api.objects["pods"], "its time-out has passed, and nobody leads"
    history.task = asyncio.create_task(standby.standby.lead(lambda leader: None))
    await settle()
    history.api.deliver()
    await settle()
    await history.clock.advance(600)
    assert "free/a" not in history.api.objects["pods"]
    history.replica = standby
    await history.stop()
