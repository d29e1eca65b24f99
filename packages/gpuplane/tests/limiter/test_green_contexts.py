"""Limits hold for work and memory in green contexts, which are parts of a primary context."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.green_contexts import GREEN

START = (
    GREEN
    + """
call("cuInit", 0)

def busy(step, seconds=0.8, work=0.002):
    count, start = 0, time.monotonic()
    while time.monotonic() < start + seconds:
        step()
        count += 1
    return 100 * count * work / (time.monotonic() - start)

def in_green(function, stream):
    assert launch(function, stream) == 0
"""
)

# Where the launches of a green context come from: what is current, and the stream.
WAYS = {
    "its_stream_in_the_primary": """
primary = c_void_p()
call("cuDevicePrimaryCtxRetain", byref(primary), 0)
call("cuCtxSetCurrent", primary)
function, stream = kernel(2000), green_stream(green_context(8)[0])
""",
    "its_stream_in_itself": """
green, own = green_context(8)
call("cuCtxSetCurrent", own)
function, stream = kernel(2000), green_stream(green)
""",
    "its_default_stream": """
green, own = green_context(8)
call("cuCtxSetCurrent", own)
function, stream = kernel(2000), None
""",
    "a_stream_made_while_it_is_current": """
green, own = green_context(8)
call("cuCtxSetCurrent", own)
function, stream = kernel(2000), c_void_p()
call("cuStreamCreate", byref(stream), 1)
""",
    "its_stream_in_another_context": """
green, own = green_context(8)
call("cuCtxSetCurrent", own)
function, stream = kernel(2000), green_stream(green)
context()
""",
    "its_stream_without_a_context": """
green, own = green_context(8)
call("cuCtxSetCurrent", own)
function, stream = kernel(2000), green_stream(green)
call("cuCtxSetCurrent", None)
""",
    "beside_a_capture": """
green, own = green_context(8)
call("cuCtxSetCurrent", own)
function, stream, captured = kernel(2000), green_stream(green), green_stream(green)
call("cuStreamBeginCapture_v2", captured, 2)
""",
    "its_default_stream_beside_a_capture": """
green, own = green_context(8)
call("cuCtxSetCurrent", own)
function, stream, captured = kernel(2000), None, green_stream(green)
call("cuStreamBeginCapture_v2", captured, 2)
""",
}


@pytest.mark.parametrize("way", WAYS)
def test_launches_are_held_to_the_share(machine: Any, way: str) -> None:
    program = START + WAYS[way] + "\nanswer(busy(lambda: in_green(function, stream)))"
    assert 8 < machine.run(program, machine.share("a", core=30)) < 34


def test_a_stream_of_another_context_is_held_too(machine: Any) -> None:
    program = (
        START
        + """
context()
function, stream = kernel(2000), c_void_p()
call("cuStreamCreate", byref(stream), 1)
context()
answer(busy(lambda: in_green(function, stream)))
"""
    )
    assert 8 < machine.run(program, machine.share("a", core=30)) < 34


def test_memory_of_a_green_context_is_charged_until_the_primary_context_ends(machine: Any) -> None:
    share = machine.share("a", memory_bytes=2 << 30, context_bytes=128 << 20)
    seen = machine.run(
        START
        + """
green, own = green_context(8)
call("cuCtxSetCurrent", own)
before = free()
address = allocate(512 * MIB)
after, too_much = free(), allocate(2 * GIB)
primary = c_void_p()
call("cuDevicePrimaryCtxRetain", byref(primary), 0)
call("cuCtxSetCurrent", primary)
call("cuGreenCtxDestroy", green)
still = free()
call("cuDevicePrimaryCtxRelease_v2", 0)
answer([before, before - after, too_much, still == after])
""",
        share,
    )
    before, taken, too_much, still = seen
    assert before == (2 << 30) - (128 << 20)  # the primary context is charged, once
    assert (taken, too_much, still) == (512 << 20, 2, True)


def test_ended_contexts_leave_nothing_in_the_books(machine: Any) -> None:
    share = machine.share("a", memory_bytes=2 << 30, context_bytes=128 << 20, core=50)
    child = machine.start(
        START
        + """
for _ in range(3):
    green, own = green_context(8)
    call("cuCtxSetCurrent", own)
    function, stream = kernel(100), green_stream(green)
    for place in (None, stream):
        assert launch(function, place) == 0
    allocate(64 * MIB)
    call("cuCtxSetCurrent", None)
    call("cuGreenCtxDestroy", green)
    call("cuStreamDestroy_v2", stream)
green, own = green_context(8)
call("cuDevicePrimaryCtxReset_v2", 0)
assert code_of("cuGreenCtxDestroy", green) == 0
ready()
""",
        share,
    )
    assert child.stdout.readline(), child.stderr.read()
    assert machine.held("a") == 0


def test_a_green_context_that_does_not_fit_is_refused(machine: Any) -> None:
    seen = machine.run(
        START + 'answer(code_of("cuGreenCtxCreate", byref(c_void_p()), descriptor(8), 0, 1))',
        machine.share("a", memory_bytes=64 << 20, context_bytes=128 << 20),
    )
    assert seen == 2


def test_a_whole_context_does_not_wait_for_an_event_of_another_process(machine: Any) -> None:
    share = machine.share("a", core=50)
    other = machine.start(
        """
context()
event, handle = c_void_p(), create_string_buffer(64)
call("cuEventCreate", byref(event), 6)
assert launch(kernel(2_000_000)) == 0
call("cuEventRecord", event, None)
call("cuIpcGetEventHandle", handle, event)
answer(list(handle.raw))
ready()
""",
        machine.without_limiter(),
    )
    handle = other.stdout.readline()
    seen = machine.run(
        START
        + f"""
class Handle(ctypes.Structure):
    _fields_ = [("raw", ctypes.c_ubyte * 64)]
green, own = green_context(8)
call("cuCtxSetCurrent", own)
event, mine = c_void_p(), c_void_p()
call("cuIpcOpenEventHandle", byref(event), Handle((ctypes.c_ubyte * 64)(*{handle})))
call("cuEventCreate", byref(mine), 2)
call("cuEventRecord", mine, None)
answer([code_of("cuGreenCtxWaitEvent", green, event), code_of("cuCtxWaitEvent", own, event),
        code_of("cuGreenCtxWaitEvent", green, mine)])
""",
        share,
    )
    assert seen == [801, 801, 0]
