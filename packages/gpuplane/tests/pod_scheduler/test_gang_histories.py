"""Random histories of gangs from all sources and of single pods, with faults at every call and crashes at every step.

Every second gang has a higher priority, so gangs evict gangs and single pods. Nothing is allocated twice, no gang stays
half bound, and in the end no gang waits that fits, or that would fit without pods of lower priority.
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
from gpuplane.scheduler.gangs import members as gang_members
from gpuplane.scheduler.gangs.gang import Gang, GangSource
from gpuplane.scheduler.pods.objects import ScheduledPod
from packages.gpuplane.tests.extender.test_histories import DAY, PODS, live, random_step, step
from packages.gpuplane.tests.pod_scheduler.test_histories import SchedulerHistory
from tests.support.fake_api import POD_GROUPS, Fault
from tests.support.pod_groups import KINDS, join_gang, pod_group
from tests.support.virtual_time import settle

SIZE = 3
SOURCES = list(GangSource)


class GangHistory(SchedulerHistory):
    """A cluster whose pods come in gangs of three; of five gangs, one is of single pods."""

    def created(self, pod: dict[str, Any]) -> dict[str, Any]:
        at, nth = divmod(self.count - 1, SIZE)
        namespace = "team" if at % 3 == 0 else "free"
        pod["metadata"]["namespace"] = namespace
        pod["spec"] |= {"schedulerName": "gpuplane", "priority": at % 2 * 10}
        if at % 5 == 4:
            pod["spec"]["priority"] = nth * 5
            return pod
        source = SOURCES[at % len(SOURCES)]
        if source is not GangSource.ANNOTATIONS and nth == at % SIZE:  # with one of its pods, so the others wait for it
            self.api.put(POD_GROUPS[KINDS[source]], pod_group(source, f"g{at}", SIZE, namespace=namespace))
        topology = {"required_topology": "node"} if at % 4 == 1 else {}
        return join_gang(pod, source, f"g{at}", SIZE, timeout_seconds="20", **topology)

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
                if isinstance(gang, Gang) and len({pod.gang for pod in waiting}) == 1:
                    self.has_no_place(gang, waiting[:SIZE])
        waits = {f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in self.waiting()}
        assert len(pods.model.queue) == len(waits), "the queue has the pods that wait, and no others"
        nominated = {uid for pods in self.leader.filtering.nominations.by_node().values() for uid in pods}
        assert nominated <= {pod["metadata"]["uid"] for pod in self.waiting()}

    def has_no_place(self, gang: Gang, pods: list[ScheduledPod]) -> None:
        """A gang that waits fits nowhere, whatever of lower priority goes."""
        scheduler = self.leader.pods
        assert scheduler is not None
        assert not scheduler.gangs.placer.place(gang, pods).places, f"gang {gang.name} fits, and waits"
        planned = scheduler.gangs._preemption.plan(gang, pods, [], [])
        assert not planned.places, f"gang {gang.name} would fit without {[pod.key for pod in planned.victims]}"


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


@pytest.mark.parametrize("gang", range(3))
async def test_gangs_run_whole(gang: int) -> None:
    """Three gangs of three whole GPUs on six GPUs: two of them run, and those of higher priority before the others."""
    history = GangHistory()
    history.count = gang * SIZE
    await live(history, [("create", 100, 16, False)] * 9 + [("deliver", 20)])
    await settle()
    holding: dict[str, list[int]] = {}
    for pod, _ in history.holding():
        holding.setdefault(gang_name(pod), []).append(pod["spec"]["priority"])
    assert sum(len(pods) for pods in holding.values()) >= SIZE
    assert all(len(pods) == SIZE for name, pods in holding.items() if name)


def gang_name(pod: dict[str, Any]) -> str:
    """The name of the gang of a pod as it was created; empty for a single pod."""
    meta = pod["metadata"]
    annotated: str = meta.get("annotations", {}).get(names.GANG_ANNOTATION, "")
    label = meta.get("labels", {}).get(names.POD_GROUP_LABEL, "")
    return annotated or label or pod["spec"].get("schedulingGroup", {}).get("podGroupName", "")
