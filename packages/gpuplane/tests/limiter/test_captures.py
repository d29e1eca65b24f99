"""While a stream is captured, limits hold for what is launched elsewhere, and the capture is not spoilt."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from packages.gpuplane.tests.limiter.conftest import answers_of_all

PROGRAM = """
import threading
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
BLOCKING, FREE = 0, 1
LEGACY, OWN = c_void_p(1), c_void_p(2)
handle = context()
function = kernel(2000)

def stream_of(flags=FREE):
    made = c_void_p()
    call("cuStreamCreate", byref(made), flags)
    return made

def event_of():
    made = c_void_p()
    call("cuEventCreate", byref(made), 2)
    return made

def begin(stream, mode=GLOBAL):
    call("cuStreamBeginCapture_v2", stream, mode)

def end(stream):
    '''The number of kernels in the graph, or the error as a negative number.'''
    graph, count = c_void_p(), c_size_t()
    code = code_of("cuStreamEndCapture", stream, byref(graph))
    if code:
        return -code
    call("cuGraphGetNodes", graph, None, byref(count))
    return count.value

def graph_of(count):
    graph, execution = c_void_p(), c_void_p()
    begin(captured, RELAXED)
    for _ in range(count):
        assert launch(function, captured) == 0
    call("cuStreamEndCapture", captured, byref(graph))
    call("cuGraphInstantiateWithFlags", byref(execution), graph, c_uint64(0))
    return execution

def in_thread(function):
    answers = []
    def run():
        call("cuCtxSetCurrent", handle)
        answers.append(function())
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return answers[0]

def repeat(step, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        step()

def busy(step, seconds=1.0, work=0.002):
    '''Percent of the GPU's time of steps that take so much of it, one after the other. It ends with a step that
    waited for a turn: the work before it is paid for then. What is queued by the last launches would not be.'''
    count, start = 0, time.monotonic()
    while True:
        before = time.monotonic()
        step()
        after = time.monotonic()
        if after > start + seconds and after - before > 0.02:
            return 100 * count * work / (after - start)
        count += 1

def launched(stream):
    assert launch(function, stream) == 0

def open_at_the_end_of_a_turn(stream, draw=lambda: None):
    begin(stream)
    draw()
    until = time.monotonic() + 0.03
    while time.monotonic() < until:
        pass

captured, other = stream_of(), stream_of()
"""

# How the capture is opened, how work is launched meanwhile, and what the capture's end returns.
LAUNCH_OTHER = "busy(lambda: launched(other))"
WAYS = {
    "global": ("begin(captured)", LAUNCH_OTHER, "end(captured)"),
    "thread_local": ("begin(captured, THREAD_LOCAL)", LAUNCH_OTHER, "end(captured)"),
    "relaxed": ("begin(captured, RELAXED)", LAUNCH_OTHER, "end(captured)"),
    "first_form": ('call("cuStreamBeginCapture", captured)', LAUNCH_OTHER, "end(captured)"),
    "own_form": (
        'call("cuStreamBeginCapture_v2_ptsz", None, GLOBAL)',
        LAUNCH_OTHER,
        "end(OWN)",
    ),
    "to_graph": (
        """
graph = c_void_p()
call("cuGraphCreate", byref(graph), 0)
call("cuStreamBeginCaptureToGraph", captured, graph, None, None, c_size_t(0), GLOBAL)
""",
        LAUNCH_OTHER,
        "end(captured)",
    ),
    "legacy_beside_free": ("begin(captured)", "busy(lambda: launched(None))", "end(captured)"),
    "own_beside_free": ("begin(captured)", "busy(lambda: launched(OWN))", "end(captured)"),
    "own_beside_blocking": (
        "captured = stream_of(BLOCKING)\nbegin(captured)",
        "busy(lambda: launched(OWN))",
        "end(captured)",
    ),
    "blocking_beside_blocking": (
        "captured, other = stream_of(BLOCKING), stream_of(BLOCKING)\nbegin(captured)",
        LAUNCH_OTHER,
        "end(captured)",
    ),
    "graphs": (
        "one = graph_of(1)\nbegin(captured)",
        'busy(lambda: call("cuGraphLaunch", one, other))',
        "end(captured)",
    ),
    "long_graphs": (
        "ten = graph_of(10)\nbegin(captured)",
        'busy(lambda: call("cuGraphLaunch", ten, other), work=0.02)',
        "end(captured)",
    ),
    "another_thread": ("begin(captured)", f"in_thread(lambda: {LAUNCH_OTHER})", "end(captured)"),
    "own_of_another_thread": (
        "captured = stream_of(BLOCKING)\nbegin(captured)",
        "in_thread(lambda: busy(lambda: launched(OWN)))",
        "end(captured)",
    ),
    "captured_beside": (
        "begin(captured)",
        "busy(lambda: [launched(captured), launched(other)])",
        "end(captured) > 20",
    ),
    "many_streams": (
        "streams = [stream_of() for _ in range(40)]\nturns = iter(streams * 1000)\nbegin(captured)",
        "busy(lambda: launched(next(turns)))",
        "end(captured)",
    ),
    "streams_that_end": (
        "begin(captured)",
        """busy(lambda: [brief := stream_of(), launched(brief), call("cuStreamDestroy_v2", brief)])""",
        "end(captured)",
    ),
    "spoilt": (
        'begin(captured)\ncode_of("cuStreamQuery", captured)',
        LAUNCH_OTHER,
        "end(captured) == -901",
    ),
    "forgotten_by_its_thread": (
        "in_thread(lambda: begin(OWN, RELAXED))",
        LAUNCH_OTHER,
        "0",
    ),
    "of_another_context": (
        """
second = c_void_p()
call("cuCtxCreate_v2", byref(second), 0, 0)
foreign = stream_of()
begin(foreign)
call("cuCtxPopCurrent_v2", byref(second))
""",
        LAUNCH_OTHER,
        "end(foreign)",
    ),
    "again_and_again": (
        "",
        "busy(lambda: [begin(captured), launched(other), end(captured)])",
        "0",
    ),
    "launched_before_in_the_same_stream": (
        "long = kernel(60_000)",
        """busy(lambda: [launch(long, captured), open_at_the_end_of_a_turn(captured), end(captured)], 1.6, 0.06)""",
        "0",
    ),
    "launched_before_in_a_stream_that_ended": (
        "long = kernel(60_000)",
        """busy(lambda: [brief := stream_of(), launch(long, brief), call("cuStreamDestroy_v2", brief),
                      open_at_the_end_of_a_turn(captured), end(captured)], 1.6, 0.06)""",
        "0",
    ),
    "launched_before_in_own_streams": (
        "long, captured = kernel(60_000), stream_of(BLOCKING)",
        """busy(lambda: [in_thread(lambda: launch(long, OWN)),
                      open_at_the_end_of_a_turn(captured), end(captured)], 1.6, 0.06)""",
        "0",
    ),
    "drawn_in_by_an_event": (
        """
long, fork, join, drawn = kernel(60_000), event_of(), event_of(), stream_of()
def draw():
    call("cuEventRecord", fork, captured)
    call("cuStreamWaitEvent", drawn, fork, 0)
    launched(drawn)  # recorded
    call("cuEventRecord", join, drawn)
    call("cuStreamWaitEvent", captured, join, 0)
def step():
    launch(long, drawn)
    open_at_the_end_of_a_turn(captured, draw)
    assert end(captured) == 1
""",
        "busy(step, 1.6, 0.06)",
        "0",
    ),
}


Measure = Callable[..., dict[str, list[float]]]


@pytest.fixture(scope="module")
def measure(machine_type: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measure]:
    """Percent of the GPU's time by each of some ways, and the end of the capture; each on a machine of its own."""
    with contextlib.ExitStack() as stack:

        def percent(*ways: str) -> dict[str, list[float]]:
            children = {}
            for way in ways:
                opened, loop, ended = WAYS[way]
                machine = machine_type(tmp_path_factory.mktemp(way) / "machine")
                stack.callback(machine.close)
                program = f"{PROGRAM}\nready()\n{opened}\nshare = {loop}\nanswer([share, {ended}])"
                children[way] = machine.start(program, machine.share("a", core=20))
            return answers_of_all(children)

        yield percent


@pytest.fixture(scope="module")
def shares(measure: Measure) -> dict[str, list[float]]:
    """All at once, since they mostly wait."""
    return measure(*WAYS)


@pytest.mark.parametrize("way", WAYS)
def test_limits_hold_while_a_stream_is_captured(shares: dict[str, list[float]], measure: Measure, way: str) -> None:
    # A second run of this test measures again, alone.
    share, ended = shares.pop(way, None) or measure(way)[way]
    # The machine may be busy: only above the limit is wrong. A quantum was saved before the first launch.
    assert 0 < share < 26
    assert ended in (0, True)


def test_recorded_launches_are_neither_held_back_nor_counted(machine) -> None:
    """The turn is over, the next is a second away, and 1,000 launches are recorded meanwhile."""
    variables = machine.share("a", core=30)
    seen = machine.run(
        PROGRAM
        + """
launch(kernel(400_000), other)
begin(captured)
began = time.monotonic()
for _ in range(1000):
    launched(captured)
recorded = time.monotonic() - began
answer([recorded < 0.6, end(captured)])
""",
        variables,
    )
    assert seen == [True, 1000]
    assert machine.store.read("a").totals[0].launches <= 1


def test_a_capture_of_one_thread_is_not_spoilt_by_launches_of_others(machine) -> None:
    """In the mode in which no thread may wait or query, while turns of the launching threads begin and end."""
    seen = machine.run(
        PROGRAM
        + """
stop = threading.Event()
def work():
    call("cuCtxSetCurrent", handle)
    own = stream_of()
    while not stop.is_set():
        launched(own)
        launched(OWN)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
def capture():
    begin(captured)
    count, until = 0, time.monotonic() + 0.03
    while time.monotonic() < until:
        launched(captured)
        count += 1
    return end(captured) - count
seen = [capture() for _ in range(15)]
stop.set()
for thread in threads: thread.join()
answer([seen, code_of("cuCtxSynchronize")])
""",
        machine.share("a", core=60),
    )
    assert seen == [[0] * 15, 0]


def test_the_mode_of_the_thread_is_left_as_it_was(machine) -> None:
    seen = machine.run(
        PROGRAM
        + """
def mode():
    now, again = c_int(RELAXED), c_int()
    call("cuThreadExchangeStreamCaptureMode", byref(now))
    call("cuThreadExchangeStreamCaptureMode", byref(c_int(now.value)))
    return now.value
modes = []
for wanted in (GLOBAL, THREAD_LOCAL, RELAXED):
    call("cuThreadExchangeStreamCaptureMode", byref(c_int(wanted)))
    begin(captured, RELAXED)
    repeat(lambda: launched(other), 0.1)
    end(captured)
    call("cuStreamDestroy_v2", other)
    other = stream_of()
    modes.append(mode())
answer(modes)
""",
        machine.share("a", core=50),
    )
    assert seen == [0, 1, 2]


def test_a_capture_that_was_not_seen_to_begin_switches_no_limit_off(machine) -> None:
    """It began in the driver itself, past the limiter, which spoils it once, and waits for marks from then on."""
    child = machine.start(
        PROGRAM
        + """
driver = ctypes.CDLL("libcuda.so.gpuplane-real")
launched(other)
assert driver.cuStreamBeginCapture_v2(captured, GLOBAL) == 0
share = busy(lambda: launched(other))
first = end(captured)
begin(captured)
second = busy(lambda: launched(other))
answer([share, first, second, end(captured)])
""",
        machine.share("a", core=20),
    )
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    share, first, second, last = json.loads(output.splitlines()[-1])
    assert 0 < share < 26 and 0 < second < 26
    assert (first, last) == (-901, 0)
    assert errors.count("was not seen to begin") == 1


def test_contexts_that_end_take_their_captures_along(machine) -> None:
    seen = machine.run(
        PROGRAM
        + """
shares = []
for round in range(3):
    call("cuCtxCreate_v2", byref(handle), 0, 0)
    function, stream, unended = kernel(2000), stream_of(), stream_of()
    begin(unended)
    shares.append(busy(lambda: launched(stream), 0.4))
    codes = [code_of("cuCtxDestroy_v2", handle)]
answer([shares, codes])
""",
        machine.share("a", core=20),
    )
    assert seen[1] == [0]
    # Each begins with what was saved meanwhile: a quantum of 20 ms, and a kernel at its end.
    assert all(share < 30 for share in seen[0])


def test_a_context_may_be_waited_for_as_soon_as_no_stream_of_it_is_captured(machine) -> None:
    """However the capture has ended: unjoined, refused to another thread, whole, or with its stream."""
    seen = machine.run(
        PROGRAM
        + """
fork = event_of()
def unjoined():
    call("cuEventRecord", fork, captured)
    call("cuStreamWaitEvent", other, fork, 0)
    launched(other)
    return end(captured)
def in_the_wrong_thread():
    return [in_thread(lambda: end(captured)), end(captured)]
def destroyed():
    return code_of("cuStreamDestroy_v2", captured)
codes = []
for finish in (unjoined, in_the_wrong_thread, lambda: end(captured), destroyed):
    begin(captured)
    repeat(lambda: launched(LEGACY), 0.1)
    codes.append([finish(), code_of("cuCtxSynchronize")])
answer(codes)
""",
        machine.share("a", core=60),
    )
    assert seen == [[-904, 0], [[-908, 0], 0], [0, 0], [0, 0]]


def test_a_share_of_memory_alone_holds_no_launch_back_during_a_capture(machine) -> None:
    seen = machine.run(
        PROGRAM
        + """
begin(captured)
repeat(lambda: launched(other), 0.2)
answer(end(captured))
""",
        machine.share("a", memory_bytes=1 << 30),
    )
    assert seen == 0
    totals = machine.store.read("a").totals[0]
    assert (totals.held_back_ns, totals.gpu_ns) == (0, 0)
