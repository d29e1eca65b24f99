"""What a turn leaves queued behind it: a neighbour waits for its quantum and for about one kernel, not for a queue."""

from __future__ import annotations

import pytest

from packages.gpuplane.tests.limiter.conftest import answers_of_all

NEIGHBOUR = """
context()
function = kernel(100)
assert launch(function) == 0
call("cuCtxSynchronize")
ready()
longest, until = 0, time.monotonic() + 2.5
while time.monotonic() < until:
    start = time.monotonic()
    assert launch(function) == 0
    call("cuCtxSynchronize")
    longest = max(longest, time.monotonic() - start)
    time.sleep(0.01)
answer(longest)
"""
# Short kernels make the limiter sure; then come long ones, as many as the driver takes.
SHORT_THEN_LONG = """
context()
short, long = kernel(20), kernel(300_000)
{warm}
for _ in range(3000):
    assert launch(short) == 0
call("cuCtxSynchronize")
ready()
until = time.monotonic() + 0.5
while time.monotonic() < until:
    for _ in range(500):
        assert launch(short) == 0
    for _ in range(64):
        if time.monotonic() < until:
            assert launch(long) == 0
answer(0)
"""


@pytest.mark.parametrize("warm", ["", "assert launch(long) == 0"], ids=["a new kernel", "a known kernel"])
def test_long_kernels_after_many_short_ones_do_not_pass_in_one_turn(machine, warm: str) -> None:
    mixed = machine.start(SHORT_THEN_LONG.format(warm=warm), machine.share("mixed", core=50))
    watching = machine.start(NEIGHBOUR, machine.share("neighbour", core=50))
    longest = answers_of_all({"mixed": mixed, "neighbour": watching})["neighbour"]
    # Its turn, one kernel of 300 ms, and what a busy machine takes.
    assert longest < 1.0
