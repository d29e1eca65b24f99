"""The speed of the processor's counter, by which a launch sees that its turn is over."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable

import pytest

from packages.gpuplane.tests.limiter.conftest import ROOT
from tests.support.compiler import compiler

HERTZ = 3_000_000_000
MILLISECOND = 1_000_000  # nanoseconds
SOURCE = """
#include "counter.h"
uint64_t counts(uint64_t b1, uint64_t c1, uint64_t a1, uint64_t b2, uint64_t c2, uint64_t a2, uint64_t nanoseconds)
{
	return counter_counts((struct counter_reading){b1, c1, a1}, (struct counter_reading){b2, c2, a2}, nanoseconds);
}
"""
Counts = Callable[..., int]


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Counts:
    folder = tmp_path_factory.mktemp("counter")
    (folder / "counts.c").write_text(SOURCE)
    include = f"-I{ROOT}/packages/gpuplane/native/limiter/cuda"
    subprocess.run(
        [*compiler(), "-shared", "-fPIC", include, "-o", folder / "counts.so", folder / "counts.c"], check=True
    )
    function = ctypes.CDLL(str(folder / "counts.so")).counts
    function.argtypes, function.restype = [ctypes.c_uint64] * 7, ctypes.c_uint64
    return function


def reading(at: float, before: float = 0, after: float = 0) -> tuple[int, int, int]:
    """Clock, counter, clock: the counter was read at `at` milliseconds, the clock so long before and after it."""
    return (
        int((at - before) * MILLISECOND),
        int(at * MILLISECOND * HERTZ / 1e9),
        int((at + after) * MILLISECOND),
    )


# A thread that loses its processor between two readings comes back milliseconds later.
@pytest.mark.parametrize(
    ("first", "now"),
    [
        (reading(100, before=30), reading(101)),
        (reading(100, after=30), reading(131)),
        (reading(100), reading(131, before=30)),
        (reading(100), reading(101, after=30)),
        (reading(100, before=30, after=30), reading(161, before=30, after=30)),
    ],
)
def test_a_turn_never_seems_longer_than_it_is(counts: Counts, first: tuple[int, ...], now: tuple[int, ...]) -> None:
    assert 0 < counts(*first, *now, 20 * MILLISECOND) <= 20 * MILLISECOND * HERTZ / 1e9


def test_readings_without_a_pause_give_the_speed(counts: Counts) -> None:
    tight = {"before": 0.0001, "after": 0.0001}
    got = counts(*reading(100, **tight), *reading(101, **tight), 20 * MILLISECOND)
    assert got == pytest.approx(20 * MILLISECOND * HERTZ / 1e9, rel=1e-3)


def test_readings_at_one_moment_give_no_speed(counts: Counts) -> None:
    assert counts(*reading(100), *reading(100), 20 * MILLISECOND) == 0
