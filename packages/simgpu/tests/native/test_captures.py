"""Stream capture of the simulated driver: calls that it records, refuses or breaks, as NVIDIA documents them.

Sources: CUDA driver API (cuThreadExchangeStreamCaptureMode, streams); CUDA programming guide (stream capture).
"""

from __future__ import annotations

from typing import Any

import pytest

# Results of the driver.
UNSUPPORTED, INVALIDATED, MERGE, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT, CAPTURED_EVENT, WRONG_THREAD = range(
    900, 909
)
ILLEGAL_STATE = 401
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2

PROGRAM = """
import threading
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
LEGACY, OWN = c_void_p(1), c_void_p(2)
EMPTY = '.version 7.0 .target sm_35 .address_size 64 .visible .entry k() { .pragma "simgpu.time_ns 1000"; ret; }'
context()
function = kernel(EMPTY, "k")

def stream_of(flags=1):
    handle = c_void_p()
    call("cuStreamCreate", byref(handle), flags)
    return handle

def event_of():
    handle = c_void_p()
    call("cuEventCreate", byref(handle), 2)
    return handle

def begin(stream, mode=GLOBAL):
    return code_of("cuStreamBeginCapture_v2", stream, mode)

def end(stream):
    graph = c_void_p()
    return code_of("cuStreamEndCapture", stream, byref(graph)), graph

def ended(stream):
    code, graph = end(stream)
    assert bool(graph.value) == (code == 0)
    return code

def status(stream):
    found = c_int(-1)
    code = code_of("cuStreamIsCapturing", stream, byref(found))
    return code or found.value

def nodes(graph):
    count = c_size_t()
    call("cuGraphGetNodes", graph, None, byref(count))
    return count.value

def in_thread(function, *arguments):
    answers = []
    def run():
        call("cuCtxSetCurrent", current)
        answers.append(function(*arguments))
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return answers[0]

current = c_void_p()
call("cuCtxGetCurrent", byref(current))
stream, other, event = stream_of(), stream_of(), event_of()
"""


def seen(node: Any, program: str) -> Any:
    return node.run(PROGRAM + program)


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
@pytest.mark.parametrize("call", ["cuStreamSynchronize", "cuStreamQuery"])
def test_asking_about_a_captured_stream_spoils_the_capture_in_every_mode(node: Any, call: str, mode: int) -> None:
    program = f"""
begin(stream, {mode})
codes = [code_of("{call}", stream), status(stream), launch(function, stream=stream)]
answer(codes + [ended(stream), status(stream)])
"""
    assert seen(node, program) == [UNSUPPORTED, 2, INVALIDATED, INVALIDATED, 0]


def test_waiting_for_a_context_spoils_the_captures_of_all_its_streams(node: Any) -> None:
    program = """
begin(stream, RELAXED), begin(other, RELAXED)
answer([code_of("cuCtxSynchronize"), ended(stream), ended(other), code_of("cuCtxSynchronize")])
"""
    assert seen(node, program) == [UNSUPPORTED, INVALIDATED, INVALIDATED, 0]


UNSAFE = """
def unsafe():
    return code_of("cuMemAlloc_v2", byref(c_uint64()), c_size_t(4096))
def relaxed(function):
    mode = c_int(RELAXED)
    call("cuThreadExchangeStreamCaptureMode", byref(mode))
    code = function()
    call("cuThreadExchangeStreamCaptureMode", byref(mode))
    return code
"""


@pytest.mark.parametrize(
    ("mode", "here", "there"),
    [(GLOBAL, UNSUPPORTED, UNSUPPORTED), (THREAD_LOCAL, UNSUPPORTED, 0), (RELAXED, 0, 0)],
)
def test_unsafe_calls_are_refused_by_the_mode_of_the_capture(node: Any, mode: int, here: int, there: int) -> None:
    program = f"""
begin(stream, {mode})
mine = unsafe()
first = ended(stream)
begin(stream, {mode})
answer([mine, first, in_thread(unsafe), ended(stream)])
"""
    spoilt = {0: 0, UNSUPPORTED: INVALIDATED}
    assert seen(node, UNSAFE + program) == [here, spoilt[here], there, spoilt[there]]


def test_a_relaxed_thread_may_make_unsafe_calls_during_any_capture(node: Any) -> None:
    program = """
call("cuEventRecord", event, other)
begin(stream, GLOBAL)
codes = [relaxed(unsafe), in_thread(relaxed, unsafe), relaxed(lambda: code_of("cuEventQuery", event))]
codes += [relaxed(lambda: code_of("cuEventSynchronize", event)), relaxed(lambda: code_of("cuStreamSynchronize", other))]
answer([codes, ended(stream)])
"""
    assert seen(node, UNSAFE + program) == [[0] * 5, 0]


@pytest.mark.parametrize(
    "call",
    [
        'code_of("cuMemFree_v2", c_uint64(0))',
        'code_of("cuMemAllocManaged", byref(c_uint64()), c_size_t(4096), 1)',
        'code_of("cuMemHostAlloc", byref(c_void_p()), c_size_t(4096), 0)',
        'code_of("cuMemcpyDtoH_v2", byref(c_uint64()), address, c_size_t(4))',
        'code_of("cuModuleLoadData", byref(c_void_p()), EMPTY.encode())',
        'code_of("cuEventQuery", event)',
        'code_of("cuEventSynchronize", event)',
        'code_of("cuStreamQuery", other)',
        'code_of("cuStreamSynchronize", other)',
    ],
)
def test_what_a_capture_does_not_see_is_refused_in_other_threads_too(node: Any, call: str) -> None:
    program = f"""
address = allocate(4)
begin(stream, GLOBAL)
answer([in_thread(lambda: {call}), ended(stream), {call}])
"""
    assert seen(node, program) == [UNSUPPORTED, INVALIDATED, 0]


def test_a_stream_joins_by_an_event_and_has_to_be_joined_back(node: Any) -> None:
    program = """
begin(stream)
launch(function, stream=stream)
call("cuEventRecord", event, stream)
call("cuStreamWaitEvent", other, event, 0)
joined = status(other)
launch(function, stream=other)
back = event_of()
call("cuEventRecord", back, other)
call("cuStreamWaitEvent", stream, back, 0)
code, graph = end(stream)
answer([joined, code, nodes(graph), status(other), launch(function, stream=other)])
"""
    assert seen(node, program) == [1, 0, 2, 0, 0]


def test_a_fork_that_was_not_joined_back_ends_the_capture_without_a_graph(node: Any) -> None:
    program = """
begin(stream)
call("cuEventRecord", event, stream)
call("cuStreamWaitEvent", other, event, 0)
launch(function, stream=other)
answer([ended(stream), status(stream), status(other), code_of("cuStreamSynchronize", other)])
"""
    assert seen(node, program) == [UNJOINED, 0, 0, 0]


def test_a_capture_ends_in_the_stream_in_which_it_began(node: Any) -> None:
    program = """
begin(stream)
call("cuEventRecord", event, stream)
call("cuStreamWaitEvent", other, event, 0)
answer([ended(other), ended(stream), ended(stream), begin(stream), begin(stream), ended(stream)])
"""
    assert seen(node, program) == [UNMATCHED, INVALIDATED, ILLEGAL_STATE, 0, ILLEGAL_STATE, 0]


def test_only_a_relaxed_capture_is_ended_by_another_thread(node: Any) -> None:
    program = """
codes = []
for mode in (GLOBAL, THREAD_LOCAL, RELAXED):
    begin(stream, mode)
    codes.append([in_thread(ended, stream), status(stream), ended(stream)])
answer(codes)
"""
    assert seen(node, program) == [[WRONG_THREAD, 1, 0], [WRONG_THREAD, 1, 0], [0, 0, ILLEGAL_STATE]]


def test_captures_are_not_merged_and_take_no_events_from_outside(node: Any) -> None:
    program = """
before = event_of()
call("cuEventRecord", before, other)
begin(stream)
outside = [code_of("cuStreamWaitEvent", stream, before, 0), ended(stream)]
begin(stream), begin(other)
call("cuEventRecord", event, stream)
merged = [code_of("cuStreamWaitEvent", other, event, 0), ended(stream), ended(other)]
answer([outside, merged])
"""
    assert seen(node, program) == [[ISOLATION, INVALIDATED], [MERGE, INVALIDATED, INVALIDATED]]


def test_an_event_of_a_capture_cannot_be_waited_for(node: Any) -> None:
    program = """
codes = []
for ask in ("cuEventQuery", "cuEventSynchronize"):
    begin(stream, RELAXED)
    call("cuEventRecord", event, stream)
    codes.append([code_of(ask, event), ended(stream), code_of(ask, event)])
call("cuEventRecord", event, stream)
answer([codes, code_of("cuEventSynchronize", event)])
"""
    assert seen(node, program) == [[[CAPTURED_EVENT, INVALIDATED, CAPTURED_EVENT]] * 2, 0]


@pytest.mark.parametrize(("flags", "code", "end"), [(0, IMPLICIT, INVALIDATED), (1, 0, 0)])
def test_the_legacy_stream_meets_captures_of_blocking_streams(node: Any, flags: int, code: int, end: int) -> None:
    program = f"""
codes = []
address = allocate(4)
for use in (lambda: launch(function), lambda: code_of("cuEventRecord", event, LEGACY),
            lambda: code_of("cuMemsetD32Async", address, 0, c_size_t(1), None)):
    blocking = stream_of({flags})
    begin(blocking, RELAXED)
    codes.append([status(LEGACY), status(blocking), use(), ended(blocking)])
answer(codes)
"""
    assert seen(node, program) == [[code, 1, code, end]] * 3


def test_the_legacy_stream_is_not_captured(node: Any) -> None:
    assert seen(node, "answer([begin(None), begin(LEGACY), status(LEGACY)])") == [UNSUPPORTED, UNSUPPORTED, 0]


def test_each_thread_has_a_default_stream_of_its_own_that_can_be_captured(node: Any) -> None:
    program = """
begin(OWN)
launch(function, stream=OWN)
other_thread = in_thread(lambda: [status(OWN), launch(function, stream=OWN), ended(OWN)])
code, graph = end(OWN)
answer([other_thread, code, nodes(graph)])
"""
    assert seen(node, program) == [[0, 0, ILLEGAL_STATE], 0, 1]


def test_a_capture_in_the_default_stream_of_a_thread_outlives_the_thread(node: Any) -> None:
    program = 'answer([in_thread(begin, OWN, RELAXED), status(OWN), code_of("cuCtxSynchronize")])'
    assert seen(node, program) == [0, 0, UNSUPPORTED]


def test_a_stream_that_is_destroyed_while_captured_takes_its_capture_along(node: Any) -> None:
    program = """
begin(stream)
call("cuEventRecord", event, stream)
call("cuStreamWaitEvent", other, event, 0)
first = [code_of("cuStreamDestroy_v2", other), status(stream), ended(stream)]
third = stream_of()
begin(third)
answer([first, code_of("cuStreamDestroy_v2", third), code_of("cuCtxSynchronize")])
"""
    assert seen(node, program) == [[0, 2, INVALIDATED], 0, 0]


def test_a_capture_adds_to_a_graph_that_is_there(node: Any) -> None:
    program = """
graph = c_void_p()
call("cuGraphCreate", byref(graph), 0)
def capture(graph):
    return code_of("cuStreamBeginCaptureToGraph", stream, graph, None, None, c_size_t(0), THREAD_LOCAL)
codes = [capture(None)]
for _ in range(2):
    codes.append(capture(graph))
    launch(function, stream=stream)
    code, result = end(stream)
    codes += [code, result.value == graph.value]
capture(graph)
code_of("cuStreamQuery", stream)
answer([codes, ended(stream), nodes(graph)])
"""
    assert seen(node, program) == [[1, 0, 0, True, 0, 0, True], INVALIDATED, 2]


def test_the_launch_of_a_graph_is_captured_as_a_child_graph(node: Any) -> None:
    program = """
begin(stream)
launch(function, stream=stream), launch(function, stream=stream)
execution = c_void_p()
call("cuGraphInstantiateWithFlags", byref(execution), end(stream)[1], c_uint64(0))
begin(stream)
codes = [code_of("cuGraphLaunch", execution, stream) for _ in range(3)]
code, graph = end(stream)
answer([codes, code, nodes(graph)])
"""
    assert seen(node, program) == [[0, 0, 0], 0, 3]


def test_a_capture_describes_itself(node: Any) -> None:
    program = """
def info(form, stream):
    state, number, graph, count = c_int(-1), c_uint64(), c_void_p(), c_size_t(9)
    more = [None] if form == 3 else []
    results = [byref(state), byref(number), byref(graph), None, *more, byref(count)]
    code = code_of(f"cuStreamGetCaptureInfo_v{form}", stream, *results)
    return [code, state.value, number.value, graph.value]
nothing = info(2, stream)
begin(stream)
first = info(2, stream)
again = info(3, stream)
code, graph = end(stream)
begin(stream)
answer([nothing, first == again, first[3] == graph.value, first[:3], info(2, stream)[2]])
"""
    assert seen(node, program) == [[0, 0, 0, None], True, True, [0, 1, 1], 2]


def test_moves_and_host_functions_of_a_capture_run_with_their_graph_in_their_order(node: Any) -> None:
    program = """
import threading
address, other, value, seen = allocate(4), allocate(4), c_uint(), []
def read(of):
    call("cuMemcpyDtoH_v2", byref(value), of, c_size_t(4))
    return value.value
word = (c_uint * 1)(11)
call("cuMemcpyHtoD_v2", address, word, c_size_t(4))
call("cuMemcpyHtoD_v2", other, word, c_size_t(4))
go = threading.Event()
held = ctypes.CFUNCTYPE(None, c_void_p)(lambda data: (go.wait(), seen.append("host")) and None)
begin(stream)
codes = [code_of("cuLaunchHostFunc", stream, held, None),
         code_of("cuMemsetD32Async", address, 7, c_size_t(1), stream),
         code_of("cuMemcpyDtoDAsync_v2", other, address, c_size_t(4), stream),
         launch(function, stream=stream)]
code, graph = end(stream)
recorded = [seen[:], read(address), read(other)]
nodes, count, kinds, kind = (c_void_p * 8)(), c_size_t(8), [], c_int()
call("cuGraphGetNodes", graph, nodes, byref(count))
for node in nodes[:count.value]:
    call("cuGraphNodeGetType", c_void_p(node), byref(kind))
    kinds.append(kind.value)
execution = c_void_p()
call("cuGraphInstantiateWithFlags", byref(execution), graph, c_uint64(0))
call("cuGraphLaunch", execution, stream)
waiting = code_of("cuStreamQuery", stream)
go.set()
call("cuStreamSynchronize", stream)
answer([codes, recorded, kinds, waiting, seen, read(address), read(other)])
"""
    assert seen(node, program) == [[0] * 4, [[], 11, 11], [3, 2, 1, 0], 600, ["host"], 7, 7]


def test_work_of_a_destroyed_stream_is_waited_for_with_its_context(node: Any) -> None:
    program = """
import time
long = kernel(EMPTY.replace("1000", "100000000").replace("entry k", "entry long"), "long")
start = time.monotonic()
launch(long, stream=stream)
call("cuStreamDestroy_v2", stream)
call("cuCtxSynchronize")
answer(time.monotonic() - start > 0.09)
"""
    assert seen(node, program) is True
