"""The queue that a turn leaves behind: a neighbour waits for its quantum and for about one kernel, not for a queue."""

from __future__ import annotations

from typing import Any

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


# Every launch leaves an event behind it; so many of them are not reached are in flight. A busy machine makes that less.
QUEUE = """
import threading
FREE, OWN, RELAXED = 1, c_void_p(2), 2
handle = context()
function = kernel({us})
for _ in range(2 * {known}):
    assert launch(function) == 0
    call("cuCtxSynchronize")

def made(name, *arguments):
    result = c_void_p()
    call(name, byref(result), *arguments)
    return result

guard, pending, most = threading.Lock(), [], 0
def launched(stream):
    global pending, most
    assert launch(function, stream) == 0
    event = made("cuEventCreate", 2)
    call("cuEventRecord", event, stream)
    with guard:
        pending = [other for other in pending if code_of("cuEventQuery", other)] + [event]
        most = max(most, len(pending))

def in_a_fresh_stream():
    brief = made("cuStreamCreate", FREE)
    launched(brief)
    call("cuStreamDestroy_v2", brief)

streams = [made("cuStreamCreate", FREE) for _ in range(40)]
turns = iter(streams * 1000)
def in_the_next_stream():
    launched(next(turns))

def twice_in_the_next_stream():
    stream = next(turns)
    launched(stream)
    launched(stream)

def thread(body):
    def run():
        call("cuCtxSetCurrent", handle)
        call("cuThreadExchangeStreamCaptureMode", byref(c_int(RELAXED)))
        body()
    started = threading.Thread(target=run)
    started.start()
    return started

def in_a_fresh_thread():
    thread(lambda: launched(OWN)).join()

def by_20_threads():
    def body():
        while time.monotonic() < until:
            launched(OWN)
    for started in [thread(body) for _ in range(20)]:
        started.join()

call("cuThreadExchangeStreamCaptureMode", byref(c_int(RELAXED)))
{opened}
ready()
until = time.monotonic() + 0.6
while time.monotonic() < until:
    {step}()
answer(most)
"""
STEPS = ("in_a_fresh_stream", "in_the_next_stream", "twice_in_the_next_stream", "in_a_fresh_thread", "by_20_threads")
OPENED = {"no capture": "", "an open capture": 'call("cuStreamBeginCapture_v2", made("cuStreamCreate", FREE), RELAXED)'}


def longest_queue(machine: Any, step: str, us: int, opened: str = "", core: int = 50, known: bool = True) -> int:
    program = QUEUE.format(step=step, us=us, opened=opened, known=known)
    most: int = answers_of_all({"a": machine.start(program, machine.share("a", core=core))})["a"]
    return most


@pytest.mark.parametrize("opened", OPENED)
@pytest.mark.parametrize("step", STEPS)
def test_launches_that_change_streams_do_not_pass_in_one_turn(machine: Any, step: str, opened: str) -> None:
    # 8 ms of work and a kernel; dozens of kernels take their turn where only each stream is bounded.
    assert 0 < longest_queue(machine, step, 2000, OPENED[opened]) <= 6


@pytest.mark.parametrize("step", ["in_a_fresh_stream", "in_a_fresh_thread", "by_20_threads"])
@pytest.mark.parametrize(("us", "known", "most"), [(2000, False, 6), (15_000, True, 2), (30_000, True, 1)])
def test_of_long_and_new_kernels_no_more_than_two_are_in_flight(
    machine: Any, step: str, us: int, known: bool, most: int
) -> None:
    """The goal of a neighbour's wait is 40 ms and a kernel. A new kernel is like a long one until it is known."""
    assert 0 < longest_queue(machine, step, us, known=known) <= most


def test_short_kernels_in_many_streams_still_run_at_one_time(machine: Any) -> None:
    """As many as in one stream, which are 32: so a GPU that runs small kernels side by side is as full as before."""
    assert 10 < longest_queue(machine, "in_the_next_stream", 200, core=100) <= 42
