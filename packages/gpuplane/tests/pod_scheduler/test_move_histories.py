"""Random histories of moves with faults at every call and crashes at every step, by orders and by itself.

No pod is evicted that says no, none twice, none against its disruption budget, and no more in an hour than the budget
has, whatever crashes. A scheduler that starts again holds the place of each pod that is gone and has no replacement
yet. Evictions and records of moves arrive late, also after the next scheduler leads. Nothing is held in the end.
Without a move that ended early, every set of pods has as many running pods as before.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuplane.api.nodeclaim import DO_NOT_DISRUPT
from gpuplane.scheduler.defrag.limits import EVICTION_SECONDS
from packages.gpuplane.tests.pod_scheduler.move_history import MoveHistory, live
from tests.support.fake_api import Fault
from tests.support.virtual_time import settle

CORES = [20, 30, 40, 50, 60]
step = st.one_of(
    st.tuples(st.just("set"), st.sampled_from(CORES), st.integers(0, 4), st.booleans()),
    st.tuples(st.just("pod"), st.sampled_from([40, 60, 80, 100, 200])),
    st.tuples(st.just("finish"), st.integers(0, 7)),
    st.tuples(st.just("order"), st.integers(0, 11), st.integers(0, 2), st.integers(0, 1)),
    st.tuples(st.just("order"), st.integers(0, 11), st.integers(0, 2), st.integers(0, 1)),
    st.tuples(st.just("deliver"), st.integers(1, 6)),
    st.just(("all",)),
    st.just(("all",)),
    st.just(("reconcile",)),
    st.just(("reconcile",)),
    st.just(("end",)),
    st.tuples(st.just("fault"), st.sampled_from(Fault)),
    st.tuples(st.just("blind"), st.booleans()),
    st.just(("land",)),
    st.just(("go on",)),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 6.0, 30.0, 90.0, 700.0, 1900.0])),
    st.just(("crash",)),
)
GOOD_DAY: list[tuple[Any, ...]] = [
    ("set", 40, 0, False), ("all",), ("set", 50, 0, False), ("all",), ("set", 30, 0, False), ("all",), ("reconcile",),
    ("all",), ("pod", 200), ("all",), ("wait", 1.0), ("all",), ("end",), ("all",), ("reconcile",), ("all",),
    ("order", 0, 1, 1), ("all",), ("end",), ("reconcile",), ("all",), ("wait", 6.0), ("order", 3, 2, 1), ("all",),
    ("end",), ("all",), ("reconcile",), ("all",), ("wait", 6.0),
]  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(step, max_size=60))
def test_short_histories(steps: list[tuple[Any, ...]]) -> None:
    asyncio.run(live(MoveHistory(), steps))


@pytest.mark.parametrize("fault", list(Fault))
def test_a_crash_at_every_step(fault: Fault) -> None:
    async def crashing() -> None:
        for at in range(6, len(GOOD_DAY) + 1):
            steps = [*GOOD_DAY[:at], ("fault", fault), *GOOD_DAY[at : at + 2], ("crash",), *GOOD_DAY[at + 2 :]]
            await live(MoveHistory(), steps)

    asyncio.run(crashing())


async def with_a_pod(history: MoveHistory) -> None:
    """Add a set of pods that may be moved, and wait until its first pod is bound."""
    history.add_set(30, 0, False)
    for _ in range(2):
        history.api.deliver()
        await settle()
        history.reconcile()
    history.api.deliver()
    await settle()


def test_a_new_leader_evicts_no_pod_that_says_no_meanwhile() -> None:
    """The eviction of the leader before it has no answer: the place is held for as long as it may be carried out."""

    async def life() -> None:
        history = MoveHistory()
        await history.start()
        try:
            await with_a_pod(history)
            history.api.faults += [Fault.NONE, Fault.LATE]  # the record is written
            history.order(0, 1, 1)
            history.api.deliver()
            await settle()
            [uid] = history.leader_places()
            pods = history.api.objects["pods"].values()
            [pod] = [pod for pod in pods if f"place:{pod['metadata']['uid']}" == uid]
            said = {**pod["metadata"]["annotations"], DO_NOT_DISRUPT: "true"}
            history.api.put("pods", {**pod, "metadata": {**pod["metadata"], "annotations": said}})
            await history.crash()
            assert history.leader_places() == [uid]
            await history.clock.advance(EVICTION_SECONDS - 1.0)
            assert history.leader_places() == [uid]
            await history.clock.advance(10.0)
            assert (history.leader_places(), history.evicted) == ([], [])
            history.check()
        finally:
            await history.stop()

    asyncio.run(life())


def test_a_leader_that_was_deposed_and_goes_on_evicts_no_pod() -> None:
    """Two leaders at once, and the first one does not know: its records are refused, so it begins no move any more."""

    async def life() -> None:
        history, later = MoveHistory(), MoveHistory()
        later.api, later.clock, later.sets, later.evicted = history.api, history.clock, history.sets, history.evicted
        await history.start()
        try:
            await with_a_pod(history)
            await later.start()
            history.order(0, 1, 1)
            history.api.deliver()
            await settle()
            await history.clock.advance(6.0)
            assert (len(history.evicted), history.mover.failed, later.mover.failed) == (1, 1, 0)
            assert (history.leader_places(), len(later.leader_places())) == ([], 1)
            history.order(1, 2, 1)
            history.api.deliver()
            await settle()
            assert len(history.evicted) == 2
            assert history.mover.budget.under_way == 0
            later.check()
        finally:
            await later.stop()
            await history.stop()

    asyncio.run(life())


@pytest.mark.parametrize("seed", range(4))
def test_long_histories_move_pods(seed: int) -> None:
    """Mostly good days, so that moves are made: by orders and by itself."""
    dice = random.Random(seed)
    odds = {
        "pod": 6, "finish": 8, "order": 6, "all": 30, "reconcile": 20, "end": 5, "fault": 2, "land": 2, "go on": 2,
        "wait": 12, "crash": 1,
    }  # fmt: skip

    def some() -> list[tuple[Any, ...]]:
        what = dice.choices(list(odds), list(odds.values()))[0]
        arguments: dict[str, tuple[Any, ...]] = {
            "pod": (dice.choice([40, 60, 80, 100, 200]),),
            "finish": (dice.randrange(8),),
            "order": (dice.randrange(12), dice.randrange(3), dice.randrange(2)),
            "fault": (dice.choice(list(Fault)),),
            "wait": (dice.choice([1.0, 6.0, 30.0, 700.0, 1900.0]),),
        }
        return [(what, *arguments.get(what, ())), *[("all",)] * (what == "order")]

    # Shares that leave parts free next to each other; of four sets one says no and one is protected.
    sets = [("set", dice.choice([20, 30]), kind, at == 2) for at, kind in enumerate((0, 0, 0, 4))]
    history = asyncio.run(
        live(MoveHistory(), [*sets, ("all",), ("reconcile",), *(taken for _ in range(600) for taken in some())])
    )
    assert history.evicted, "no pod was moved at all"
