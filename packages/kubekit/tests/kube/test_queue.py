"""The work queue: keys wait once, are worked on once at a time, and are never lost."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubekit.kube import QueueClosed, TokenBucket, WorkQueue


async def test_a_key_waits_once(clock):
    queue = WorkQueue(clock=clock)
    for name in ("a", "b", "a"):
        queue.add(name)
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    assert len(queue) == 0


async def test_a_key_added_while_worked_on_comes_again_after_done(clock):
    queue = WorkQueue(clock=clock)
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await queue.get() == "a"
    queue.done("a")
    assert queue.idle


async def test_retries_wait_longer_and_longer_up_to_the_cap(clock):
    queue = WorkQueue(clock=clock, base=1.0, cap=8.0)
    assert [queue.retry("a") for _ in range(5)] == [1.0, 2.0, 4.0, 8.0, 8.0]
    queue.forget("a")
    assert queue.retry("b") == 1.0


async def test_a_retry_comes_when_it_is_due(clock):
    queue = WorkQueue(clock=clock, base=1.0)
    queue.retry("a")
    clock.jump(0.9)
    assert len(queue) == 0
    clock.jump(0.2)
    assert await queue.get() == "a"


async def test_of_several_plans_the_earliest_counts(clock):
    queue = WorkQueue(clock=clock)
    queue.add_after("a", 10)
    queue.add_after("a", 5)
    queue.add_after("a", 20)
    clock.jump(5)
    assert len(queue) == 1
    assert queue.planned == 0


async def test_many_failing_keys_are_slowed_down_together(clock):
    queue = WorkQueue(clock=clock)
    delays = [queue.retry(f"k{i}") for i in range(1000)]
    assert max(delays[:500]) < 0.01
    assert delays[-1] == pytest.approx(10.0, rel=0.01)  # 500 beyond the burst, at 50 a second


async def test_a_cancelled_getter_passes_its_turn_on(clock):
    queue = WorkQueue(clock=clock)
    first = asyncio.create_task(queue.get())
    second = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    assert await second == "a"
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_close_lets_getters_drain_and_then_go(clock):
    queue = WorkQueue(clock=clock)
    idle = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.close()
    with pytest.raises(QueueClosed):
        await idle
    queue.add("late")
    assert len(queue) == 0


def test_a_token_bucket_never_gives_more_than_burst_and_rate(make_clock):
    clock = make_clock()
    bucket = TokenBucket(rate=2.0, burst=3.0, now=clock.now)
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    clock.jump(0.5)
    assert [bucket.take(), bucket.take()] == [True, False]
    clock.jump(3600)
    assert sum(bucket.take() for _ in range(10)) == 3


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "get", "get", "done", "retry", "after", "jump"]),
        st.sampled_from("abc"),
        st.floats(0.001, 5.0),
    ),
    min_size=15,
    max_size=80,
)


@settings(max_examples=200, deadline=None)
@given(OPERATIONS)
def test_any_history_equals_the_model(make_clock, operations):
    """The model: a set that waits, a set worked on, and due times; the queue must always agree with it."""

    async def run() -> None:
        clock = make_clock()
        queue = WorkQueue(clock=clock, base=0.01, cap=4.0)
        waiting: set[str] = set()
        working: set[str] = set()
        due: dict[str, float] = {}

        def plan(name: str, seconds: float) -> None:
            due[name] = min(due.get(name, float("inf")), clock.now() + seconds)

        for what, name, seconds in operations:
            if what == "add":
                queue.add(name)
                waiting.add(name)
            elif what == "retry":
                plan(name, queue.retry(name))
            elif what == "after":
                queue.add_after(name, seconds)
                plan(name, seconds)
            elif what == "jump":
                clock.jump(seconds)
                waiting |= {k for k, when in due.items() if when <= clock.now()}
                due = {k: when for k, when in due.items() if when > clock.now()}
            elif what == "get" and len(queue):
                got = await queue.get()
                assert got in waiting
                assert got not in working
                waiting.discard(got)
                working.add(got)
            elif what == "done" and name in working:
                working.discard(name)
                queue.done(name)
            assert len(queue) == len(waiting - working)
            assert queue.planned == len(due)
            assert queue.idle == (not working and not waiting)
        for name in working:
            queue.done(name)
        clock.jump(10.0)
        rest = [await queue.get() for _ in range(len(queue))]
        assert sorted(rest) == sorted(waiting | set(due))

    asyncio.run(run())
