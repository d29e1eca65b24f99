"""Random histories of gangs, with faults at every call and crashes at every step.

Nothing is allocated twice, no gang stays half bound, and in the end no gang waits that fits.
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
from gpuplane.scheduler.pods import gang_members
from gpuplane.scheduler.pods.gang import Gang
from gpuplane.scheduler.pods.objects import ScheduledPod
from packages.gpuplane.tests.extender.test_histories import DAY, PODS, live, random_step, step
from packages.gpuplane.tests.pod_scheduler.test_histories import SchedulerHistory
from tests.support.fake_api import Fault
from tests.support.virtual_time import settle

SIZE = 3


class GangHistory(SchedulerHistory):
    """A cluster whose pods come in gangs of three."""

    def created(self, pod: dict[str, Any]) -> dict[str, Any]:
        at = (self.count - 1) // SIZE
        pod["metadata"] |= {
            "namespace": "team" if at % 3 == 0 else "free",
            "annotations": {
                names.GANG_ANNOTATION: f"g{at}",
                names.GANG_SIZE_ANNOTATION: str(SIZE),
                names.GANG_TIMEOUT_ANNOTATION: "20",
                **({names.GANG_REQUIRED_TOPOLOGY_ANNOTATION: "node"} if at % 4 == 1 else {}),
            },
        }
        pod["spec"]["schedulerName"] = "gpuplane"
        return pod

    def gangs(self) -> dict[gang_members.GangKey, list[ScheduledPod]]:
        """The pods of each gang, as the API server has them."""
        found: dict[gang_members.GangKey, list[ScheduledPod]] = {}
        assert self.leader.pods is not None
        for key in self.leader.pods.gangs.members.names():
            found[key] = self.leader.pods.gangs.members.of(key)
        return found

    async def end_well(self) -> None:
        await super(SchedulerHistory, self).end_well()
        self.check()
        pods = self.leader.pods
        assert pods is not None
        for key, members in self.gangs().items():
            assert not gang_members.half_bound(members), f"gang {key} is half bound"
            waiting = [pod for pod in members if not pod.spec.node_name]
            if len(waiting) >= SIZE and len(waiting) == len(members):
                assert waiting[0].gang is not None
                gang = pods.groups.gang(key[0], waiting[0].gang)
                assert isinstance(gang, Gang)
                assert not pods.gangs.placer.place(gang, waiting[:SIZE]).places, f"gang {key} fits, and waits"
        waits = {f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in self.waiting()}
        assert len(pods.model.queue) == len(waits), "the queue has the pods that wait, and no others"


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(step, max_size=60))
def test_short_histories(steps: list[tuple[Any, ...]]) -> None:
    asyncio.run(live(GangHistory(), steps))


@pytest.mark.parametrize("fault", list(Fault))
def test_a_crash_at_every_step(fault: Fault) -> None:
    async def crashing() -> None:
        for at in range(3, len(DAY) + 1):
            bad: Iterable[tuple[Any, ...]] = [("fault", fault)]
            await live(GangHistory(), [*DAY[:3], *bad, *DAY[3:at], ("crash",), *DAY[at:]])

    asyncio.run(crashing())


@pytest.mark.parametrize("seed", range(2))
def test_long_histories(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")
    dice = random.Random(seed)
    history = GangHistory()
    asyncio.run(live(history, (random_step(dice) for _ in iter(lambda: history.count < PODS // 2, False))))
    assert not [record for record in caplog.records if record.name.startswith("gpuplane")]


async def test_gangs_run_whole() -> None:
    """Three gangs of three whole GPUs on six GPUs: two of them run."""
    history = GangHistory()
    await live(history, [("create", 100, 16, False)] * 9 + [("deliver", 9)])
    await settle()
    bound = [pod["metadata"]["annotations"][names.GANG_ANNOTATION] for pod, _ in history.holding()]
    assert len(bound) == 6 or len(bound) == 3
    assert all(bound.count(gang) == SIZE for gang in bound)
