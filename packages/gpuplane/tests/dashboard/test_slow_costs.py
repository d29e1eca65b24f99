"""Questions for costs that are slow or fail: those of other tenants are answered meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpuplane.cli.cost_source import Sums, SumsKind
from gpuplane.dashboard.costs import AT_ONCE, CostFacts
from gpuplane.metering.cost import MeteredUse
from kubekit.errors import NoAnswer
from packages.gpuplane.tests.dashboard.test_costs import Counting

Answer = dict[str, Any]


class Store:
    """Sums of a store. A question by a label in `slow` waits until `release`; one by a label in `failing` fails."""

    def __init__(self, slow: Collection[str] = (), failing: Collection[str] = ()) -> None:
        self._slow, self._failing = slow, failing
        self._released = asyncio.Event()
        self._came = asyncio.Condition()
        self.asked: list[str] = []
        self.facts = CostFacts(Counting(b""), lambda: 0.0, self.read)  # type: ignore[arg-type]

    async def read(self, labels: Sequence[str], namespace: str, seconds: float) -> Sums:
        label = labels[-1]
        async with self._came:
            self.asked.append(label)
            self._came.notify_all()
        if label in self._slow:
            await self._released.wait()
        if label in self._failing:
            raise NoAnswer("the store does not answer")
        uses = (MeteredUse(names=("ml", "one"), node="n", model="T4", held_seconds=3600.0),)
        return Sums(uses, "store", True, kind=SumsKind.STORE)

    def ask(self, label: str, tenant: str | None) -> Coroutine[Any, Any, Answer]:
        return self.facts.cost(f"label={label}", "30d", None if tenant is None else frozenset({tenant}))

    async def came(self, *labels: str) -> None:
        """Return when questions by these labels have come, in any order."""
        async with self._came:
            await self._came.wait_for(lambda: set(labels) <= set(self.asked))

    def release(self) -> None:
        self._released.set()


@asynccontextmanager
async def under_way(store: Store, **questions: str) -> AsyncIterator[list[asyncio.Task[Answer]]]:
    """Ask questions, tenant -> label, and enter when all have come to the store; released at the end."""
    tasks = [asyncio.create_task(store.ask(label, tenant)) for tenant, label in questions.items()]
    await store.came(*questions.values())
    try:
        yield tasks
    finally:
        store.release()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("other", ["ci", None])
async def test_a_slow_question_delays_no_other_tenant(other: str | None) -> None:
    store = Store(slow={"month"})
    async with under_way(store, ml="month") as (slow,):
        assert (await store.ask("team", other))["total"]["heldHours"] >= 0
        assert not slow.done()
    assert slow.result()["total"]["heldHours"] == 1.0


async def test_a_tenant_asks_one_question_at_a_time_and_gets_remembered_answers_at_once() -> None:
    store = Store(slow={"month"})
    await store.ask("known", "ml")
    async with under_way(store, ml="month"):
        second = asyncio.create_task(store.ask("second", "ml"))
        await store.ask("known", "ml")
        await store.ask("team", "ci")
        assert store.asked == ["known", "month", "team"]
    await second
    assert store.asked[-1] == "second"


async def test_the_same_question_of_two_tenants_is_asked_once() -> None:
    store = Store(slow={"month"})
    async with under_way(store, ml="month"):
        other = asyncio.create_task(store.ask("month", "ci"))
        await store.ask("team", "third")
    await other
    assert store.asked == ["month", "team"]


async def test_where_the_first_who_asks_goes_away_the_next_asks() -> None:
    store = Store(slow={"month"})
    async with under_way(store, ml="month") as (first,):
        other = asyncio.create_task(store.ask("month", "ci"))
        await store.ask("team", "third")
        first.cancel()
        await asyncio.wait([first])
        store.release()
        assert (await other)["by"] == "label=month"
    assert store.asked == ["month", "team", "month"]


async def test_a_question_that_fails_delays_no_other_and_is_asked_again() -> None:
    store = Store(failing={"month"})
    for _ in range(2):
        with pytest.raises(NoAnswer):
            await store.ask("month", "ml")
    await store.ask("team", "ml")
    assert store.asked == ["month", "month", "team"]


async def test_many_tenants_ask_few_questions_at_the_same_time() -> None:
    slow = {f"t{number}": f"label{number}" for number in range(AT_ONCE)}
    store = Store(slow=set(slow.values()))
    async with under_way(store, **slow):
        late = asyncio.create_task(store.ask("late", "late"))
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(store.asked) == AT_ONCE and not late.done()
    await late
    assert store.asked[-1] == "late"
