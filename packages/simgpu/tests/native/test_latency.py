"""Latency of allocations, by an injected distribution."""

from __future__ import annotations

from typing import Any

import pytest

from kubekit.errors import InvalidInput

WAYS = {
    "linear": ('"cuMemAlloc_v2", byref(address), c_size_t(MIB)', '"cuMemFree_v2", address'),
    "managed": ('"cuMemAllocManaged", byref(address), c_size_t(MIB), 1', '"cuMemFree_v2", address'),
    "stream-ordered": ('"cuMemAllocAsync", byref(address), c_size_t(MIB), None', '"cuMemFreeAsync", address, None'),
}
TIMED = """
import time
context()
MIB, address = 1 << 20, c_uint64()
def took(*arguments):
    start = time.monotonic()
    call(*arguments)
    return time.monotonic() - start
times = []
for _ in range(30):
    times += [took({allocate}), took({free})]
answer(times)
"""


@pytest.mark.parametrize("way", WAYS)
def test_allocations_and_their_ends_take_one_of_the_times(node: Any, way: str) -> None:
    allocate, free = WAYS[way]
    with node.faults() as faults:
        faults.allocation_latency(0, [0, 30_000])
        times = node.run(TIMED.format(allocate=allocate, free=free))
    # By chance, so of 60 calls both kinds are among them but once in 10^14 times.
    slow = [seconds for seconds in times if seconds >= 0.03]
    assert slow
    assert len(slow) < len(times)


def test_after_a_reset_they_take_no_time(node: Any) -> None:
    allocate, free = WAYS["linear"]
    program = TIMED.format(allocate=allocate, free=free)
    with node.faults() as faults:
        faults.allocation_latency(0, [30_000])
        assert min(node.run(program)) >= 0.03
        faults.clear(0)
        assert min(node.run(program)) < 0.03


@pytest.mark.parametrize("wanted", [[1] * 9, [-1], [10_000_001]])
def test_what_cannot_be_is_refused(node: Any, wanted: list[int]) -> None:
    with node.faults() as faults, pytest.raises(InvalidInput, match="latencies"):
        faults.allocation_latency(0, wanted)
