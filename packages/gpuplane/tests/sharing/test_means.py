"""Means over equal parts of a time, which curves are drawn from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.sharing.means import MeanOverTime

STEPS = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 9)), min_size=1, max_size=30)


@given(st.integers(-50, 50), STEPS, st.integers(1, 40))
def test_the_mean_of_the_parts_is_the_mean_of_the_time(first: int, steps: list[tuple[int, int]], parts: int) -> None:
    seconds = sum(length for length, _ in steps)
    means, now = MeanOverTime(first, first + seconds, parts), first
    for length, amount in steps:
        means.add(now, now + length, amount)
        now += length
    found = means.means()
    if not seconds:
        assert found == []
        return
    whole = sum(length * amount for length, amount in steps) / seconds
    assert sum(value for _, value in found) / len(found) == pytest.approx(whole)
    assert len(found) == min(parts, seconds)
    assert all(0 <= value <= 9 + 1e-9 for _, value in found)


def test_an_amount_counts_in_the_parts_in_which_it_was() -> None:
    means = MeanOverTime(100, 140, 4)
    means.add(105, 125, 8)
    assert means.means() == [(5.0, 4.0), (15.0, 8.0), (25.0, 4.0), (35.0, 0.0)]
