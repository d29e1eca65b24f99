"""A gang whose preemption took long to plan and did not help rests, and is woken if it was tried meanwhile."""

from __future__ import annotations

from gpuplane.scheduler.gangs.gang import GangSource
from gpuplane.scheduler.gangs.members import GangKey
from gpuplane.scheduler.gangs.rests import REST_FACTOR, GangRests
from tests.support.virtual_time import VirtualClock

KEY: GangKey = ("default", GangSource.ANNOTATIONS, "train")


async def test_a_gang_that_was_tried_is_woken_at_the_end() -> None:
    clock, woken = VirtualClock(), list[GangKey]()
    rests = GangRests(clock, woken.append)
    rests.begin(KEY, 0.5, "no help")
    assert rests.message(KEY) == rests.message(KEY) == "no help"
    await clock.advance(REST_FACTOR * 0.5 - 1)
    assert rests.message(KEY) and not woken
    await clock.advance(1)
    assert woken == [KEY] and not rests.message(KEY)


async def test_a_gang_that_was_not_tried_is_not_woken() -> None:
    clock, woken = VirtualClock(), list[GangKey]()
    rests = GangRests(clock, woken.append)
    rests.begin(KEY, 0.5, "no help")
    await clock.advance(REST_FACTOR)
    assert not rests.message(KEY) and not woken


async def test_a_rest_that_ends_early_wakes_nobody() -> None:
    clock, woken = VirtualClock(), list[GangKey]()
    rests = GangRests(clock, woken.append)
    rests.begin(KEY, 0.5, "no help")
    assert rests.message(KEY)
    rests.end(KEY)
    assert not rests.message(KEY)
    rests.begin(KEY, 0.5, "no help")
    assert rests.message(KEY)
    rests.close()
    await clock.advance(REST_FACTOR)
    assert not woken
