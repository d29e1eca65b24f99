"""Waits of a stream for events outside of the GPU: host functions, values in memory, events of other processes.

Work that is queued behind such an event runs after it, and a launch does not wait for it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

BEGIN = """
import threading, time
HOST = ctypes.CFUNCTYPE(None, c_void_p)
STORE = '''.version 7.0 .target sm_50 .address_size 64
.visible .entry store(.param .u64 to, .param .u64 from) {
    .reg .b64 %a<4>; .reg .b32 %r<2>;
    ld.param.u64 %a1, [to]; ld.param.u64 %a2, [from];
    ld.global.u32 %r1, [%a2]; st.global.u32 [%a1], %r1; ret; }'''
def wait_value(address, value, flags=0):
    call("cuStreamWaitValue32_v2", stream, c_uint64(address), c_uint(value), flags)
def done():
    return code_of("cuStreamQuery", stream) == 0
context()
stream, event = c_void_p(), c_void_p()
call("cuStreamCreate", byref(stream), 1)
call("cuEventCreate", byref(event), 2)
shared = c_void_p()
call("cuMemAllocHost_v2", byref(shared), c_size_t(4096))
words = (c_uint * 4).from_address(shared.value)
"""
# Each way to hold the stream, and to let it go on.
HOLDS = {
    "host function": """
gate = threading.Event()
function = HOST(lambda data: gate.wait())
call("cuLaunchHostFunc", stream, function, None)
let_go = gate.set
""",
    "value": """
wait_value(shared.value, 7)
def let_go():
    words[0] = 8
""",
    "several": """
class Operation(ctypes.Structure):
    _fields_ = [("kind", c_int), ("address", c_uint64), ("value", c_uint64), ("flags", c_uint), ("alias", c_uint64),
                ("reserved", c_uint64)]
operations = (Operation * 2)(Operation(1, shared.value, 7, 1), Operation(2, shared.value + 4, 9, 0))
call("cuStreamBatchMemOp_v2", stream, 2, operations, 0)
def let_go():
    words[0] = 7
""",
}


@pytest.mark.parametrize("kind", HOLDS)
def test_what_is_queued_behind_a_wait_runs_after_it(node: Any, kind: str) -> None:
    seen = node.run(
        BEGIN
        + HOLDS[kind]
        + """
store = kernel(STORE, "store")
words[2] = 1
assert launch(store, shared.value + 12, shared.value + 8, stream=stream) == 0
call("cuEventRecord", event, stream)
other = c_void_p()
call("cuStreamCreate", byref(other), 1)
call("cuStreamWaitEvent", other, event, 0)
before = [done(), code_of("cuEventQuery", event), code_of("cuStreamQuery", other), words[3]]
words[2] = 5
let_go()
call("cuStreamSynchronize", other)
answer([before, [done(), code_of("cuEventQuery", event), words[3]]])
"""
    )
    assert seen == [[False, 600, 600, 0], [True, 0, 5]]


@pytest.mark.parametrize(
    ("flags", "value", "passes"), [(0, 6, 7), (1, 7, 7), (2, 2, 6), (3, 0xFFFFFFF0, 1)], ids=["geq", "eq", "and", "nor"]
)
def test_a_wait_for_a_value_ends_by_its_condition(node: Any, flags: int, value: int, passes: int) -> None:
    words = {0: 5, 1: 6, 2: 5, 3: 15}
    assert node.run(
        BEGIN
        + f"words[0] = {words[flags]}\nwait_value(shared.value, {value}, {flags})\nbefore = done()\n"
        + f"words[0] = {passes}\ncall('cuStreamSynchronize', stream)\nanswer([before, done()])"
    ) == [False, True]


def test_a_value_is_written_when_the_work_before_it_is_done(node: Any) -> None:
    seen = node.run(
        BEGIN
        + """
text = '.version 7.0 .target sm_50 .address_size 64 .visible .entry k() { .pragma "simgpu.time_ns 200000000"; ret; }'
assert launch(kernel(text, "k"), stream=stream) == 0
call("cuStreamWriteValue32_v2", stream, c_uint64(shared.value), c_uint(3), 0)
before = words[0]
call("cuStreamSynchronize", stream)
answer([before, words[0]])
"""
    )
    assert seen == [0, 3]


def test_an_event_is_waited_for_in_another_process(node: Any) -> None:
    handle = "class Handle(ctypes.Structure):\n    _fields_ = [('bytes', ctypes.c_ubyte * 64)]\nhandle = Handle()\n"
    recorder = node.start(
        BEGIN
        + handle
        + """
call("cuEventCreate", byref(event), 6)
call("cuIpcGetEventHandle", byref(handle), event)
wait_value(shared.value, 1)
call("cuEventRecord", event, stream)
answer(list(handle.bytes))
sys.stdin.readline()
words[0] = 1
sys.stdin.readline()
"""
    )
    told = json.loads(recorder.stdout.readline() or recorder.stderr.read())
    waiter = node.start(
        BEGIN
        + handle
        + f"""
handle = Handle((ctypes.c_ubyte * 64)(*{told}))
call("cuIpcOpenEventHandle", byref(event), handle)
call("cuStreamWaitEvent", stream, event, 0)
answer(done())
call("cuStreamSynchronize", stream)
answer(done())
"""
    )
    assert json.loads(waiter.stdout.readline() or waiter.stderr.read()) is False
    recorder.stdin.write("go\n")
    recorder.stdin.flush()
    assert json.loads(waiter.stdout.readline()) is True
