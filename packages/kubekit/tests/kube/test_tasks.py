"""A race of awaitables leaves one result, no task, and no lost error."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kubekit.kube.tasks import first_of


class Runner:
    """A coroutine that waits until it is let go, and records what happened to it."""

    def __init__(self, *, error: Exception | None = None, at_cancel: Exception | None = None) -> None:
        self.error, self.at_cancel = error, at_cancel
        self.go = asyncio.Event()
        self.cleaned = False

    async def run(self) -> None:
        try:
            await self.go.wait()
            if self.error is not None:
                raise self.error
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # a cleanup that takes a turn of the loop
            if self.at_cancel is not None:
                raise self.at_cancel from None
            raise
        finally:
            self.cleaned = True


def left() -> int:
    return len(asyncio.all_tasks()) - 1


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("winner", [0, 1])
async def test_the_loser_is_cancelled_and_awaited(winner: int) -> None:
    runners = Runner(), Runner()
    runners[winner].go.set()
    assert await first_of(runners[0].run(), runners[1].run()) == winner
    assert all(runner.cleaned for runner in runners)
    assert left() == 0


async def test_both_at_once_is_the_first() -> None:
    runners = Runner(), Runner()
    for runner in runners:
        runner.go.set()
    assert await first_of(runners[1].run(), runners[0].run()) == 0
    assert all(runner.cleaned for runner in runners)


async def test_an_error_of_the_winner_is_raised() -> None:
    failing, other = Runner(error=KeyError("winner")), Runner()
    failing.go.set()
    with pytest.raises(KeyError, match="winner"):
        await first_of(other.run(), failing.run())
    assert other.cleaned and left() == 0


async def test_an_error_beats_a_result_of_the_same_moment() -> None:
    fine, failing = Runner(), Runner(error=KeyError("second"))
    fine.go.set()
    failing.go.set()
    with pytest.raises(KeyError, match="second"):
        await first_of(fine.run(), failing.run())


async def test_an_error_in_the_cleanup_of_a_loser_is_raised() -> None:
    fine, failing = Runner(), Runner(at_cancel=KeyError("cleanup"))
    fine.go.set()
    with pytest.raises(KeyError, match="cleanup"):
        await first_of(fine.run(), failing.run())


async def test_of_two_errors_the_first_is_raised_and_the_other_logged(caplog: pytest.LogCaptureFixture) -> None:
    failing, also = Runner(error=KeyError("one")), Runner(at_cancel=ValueError("two"))
    failing.go.set()
    with caplog.at_level(logging.ERROR), pytest.raises(KeyError, match="one"):
        await first_of(failing.run(), also.run())
    [record] = caplog.records
    assert record.exc_info is not None and str(record.exc_info[1]) == "two"


async def test_cancelling_the_race_cancels_all_and_logs_their_errors(caplog: pytest.LogCaptureFixture) -> None:
    runners = Runner(), Runner(at_cancel=ValueError("cleanup"))
    race = asyncio.create_task(first_of(*(runner.run() for runner in runners)))
    await turns()
    race.cancel()
    with pytest.raises(asyncio.CancelledError):
        await race
    assert all(runner.cleaned for runner in runners)
    assert left() == 0
    [record] = caplog.records
    assert record.exc_info is not None and str(record.exc_info[1]) == "cleanup"


async def test_cancelling_it_before_anything_began_leaves_nothing() -> None:
    race = asyncio.create_task(first_of(Runner().run(), Runner().run()))
    await asyncio.sleep(0)  # the race begins, its runners have not
    race.cancel()
    with pytest.raises(asyncio.CancelledError):
        await race
    assert left() == 0


async def test_a_second_cancellation_does_not_abandon_the_losers() -> None:
    runner = Runner()
    race = asyncio.create_task(first_of(runner.run()))
    await turns()
    race.cancel()
    await asyncio.sleep(0)  # the race cancels its runner
    race.cancel()
    with pytest.raises(asyncio.CancelledError):
        await race
    assert runner.cleaned and left() == 0


async def test_a_timeout_around_it_ends_it() -> None:
    runner = Runner()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await first_of(runner.run())
    assert left() == 0


async def test_a_task_of_the_caller_is_watched_and_lives_on() -> None:
    mine, runner = Runner(), Runner()
    task = asyncio.create_task(mine.run())
    runner.go.set()
    assert await first_of(task, runner.run()) == 1
    assert not task.done() and not task.cancelling()
    mine.go.set()
    assert await first_of(task, Runner().run()) == 0
    assert task.done() and left() == 0


async def test_a_task_of_the_caller_raises_its_error_here() -> None:
    async def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await first_of(Runner().run(), asyncio.create_task(fail()))


async def test_a_task_that_somebody_cancelled_ends_it() -> None:
    task = asyncio.create_task(Runner().run())
    await turns()
    task.cancel()
    runner = Runner()
    with pytest.raises(asyncio.CancelledError):
        await first_of(runner.run(), task)
    assert runner.cleaned and left() == 0
