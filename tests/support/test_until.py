"""The helper that tests wait with: it ends when it may, and a failure says what was waited for."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.until import until


async def test_the_first_true_value_is_returned_after_a_change() -> None:
    changed, values = asyncio.Event(), [0]

    async def change() -> None:
        for value in (0, 7):
            values.append(value)
            changed.set()
            await asyncio.sleep(0)

    task = asyncio.create_task(change())
    assert await until(lambda: values[-1], changed=changed, seconds=5) == 7
    await task


async def test_a_condition_may_be_awaited_and_its_errors_mean_not_yet() -> None:
    answers = iter(["early", "", "late"])

    async def condition() -> str:
        answer = next(answers)
        if answer == "early":
            raise KeyError(answer)
        return answer

    assert await until(condition, poll=0, ignored=KeyError) == "late"
    with pytest.raises(ValueError, match="wrong"):
        await until(lambda: int("wrong"), ignored=KeyError)


async def test_the_end_of_the_task_ends_the_wait() -> None:
    async def work() -> None:
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match=r"the answer did not come about before the end of .*; only 3"):
        await until(
            lambda: False,
            changed=asyncio.Event(),
            task=asyncio.create_task(work()),
            what="the answer",
            seen=lambda: "only 3",
        )


async def test_when_the_time_is_over_it_says_what_there_is() -> None:
    with pytest.raises(AssertionError, match="it did not come about in 0 s; only 3"):
        await until(lambda: False, changed=asyncio.Event(), seconds=0, seen=lambda: "only 3")
    with pytest.raises(TimeoutError):  # the condition's own
        await until(lambda: asyncio.wait_for(asyncio.Event().wait(), 0))
