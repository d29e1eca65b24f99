"""Green contexts of the simulated driver, by NVIDIA's documentation of the driver API."""

from __future__ import annotations

from typing import Any

from tests.support.green_contexts import GREEN

# A kernel that takes so much time, and one that counts the multiprocessors that it may use.
KERNELS = """
def timed(milliseconds):
    return kernel('''.version 7.0 .target sm_35 .address_size 64
.visible .entry k() { .pragma "simgpu.time_ns %d"; ret; }''' % (milliseconds * 1000000), "k")
COUNT = '''
.version 7.0 .target sm_35 .address_size 64
.visible .entry count(.param .u64 p)
{
    .reg .b64 %rd<2>; .reg .b32 %r<2>;
    ld.param.u64 %rd1, [p]; mov.u32 %r1, %nsmid; st.global.u32 [%rd1], %r1; ret;
}
'''
def multiprocessors(function, address, stream):
    word = c_uint()
    assert launch(function, address, stream=stream) == 0
    call("cuMemcpyDtoH_v2", byref(word), address, c_size_t(4))
    return word.value
"""


def test_multiprocessors_are_split_by_what_the_architecture_can_split(node: Any) -> None:
    seen = node.run(
        GREEN
        + """
call("cuInit", 0)
whole = device_resource()
parts, count, rest = (Resource * 8)(), c_uint(8), Resource()
call("cuDevSmResourceSplitByCount", parts, byref(count), byref(whole), byref(rest), 0, 5)
possible = c_uint(0)
call("cuDevSmResourceSplitByCount", None, byref(possible), byref(whole), None, 0, 5)
failed = [code_of("cuDeviceGetDevResource", 0, byref(Resource()), 2),
          code_of("cuDevSmResourceSplitByCount", parts, byref(count), byref(whole), None, 0, 41),
          code_of("cuDevSmResourceSplitByCount", parts, byref(count), byref(Resource()), None, 0, 2),
          code_of("cuDevResourceGenerateDesc", byref(c_void_p()), byref(whole), 0)]
answer([whole.count, count.value, [part.count for part in parts], rest.count, possible.value, failed])
"""
    )
    assert seen == [40, 6, [6] * 6 + [0, 0], 4, 6, [914, 915, 914, 1]]


def test_a_green_context_is_a_part_of_the_primary_context(node: Any) -> None:
    seen = node.run(
        GREEN
        + """
call("cuInit", 0)
flags, alive, handle, other = c_uint(), c_int(), c_void_p(), c_void_p()
bad = code_of("cuGreenCtxCreate", byref(handle), descriptor(8), 0, 0)
green, context = green_context(8)
call("cuDevicePrimaryCtxGetState", 0, byref(flags), byref(alive))
stream = green_stream(green)
wrong = code_of("cuGreenCtxStreamCreate", byref(other), green, 0, 0)
found, part, own = c_void_p(), c_void_p(), Resource()
old = code_of("cuStreamGetCtx", stream, byref(found))
call("cuStreamGetCtx_v2", stream, byref(found), byref(part))
primary = c_void_p()
call("cuDevicePrimaryCtxRetain", byref(primary), 0)
call("cuGreenCtxGetDevResource", green, byref(own), 1)
same = [found.value == primary.value, part.value == green.value, own.count, context.value != primary.value]
destroyed = code_of("cuCtxDestroy_v2", context)
call("cuCtxSetCurrent", context)
address = allocate(1 << 20)
call("cuDevicePrimaryCtxRelease_v2", 0)
call("cuCtxSetCurrent", None)
call("cuGreenCtxDestroy", green)
after = c_int()
call("cuDevicePrimaryCtxGetState", 0, byref(flags), byref(after))
late = [code_of("cuGreenCtxDestroy", c_void_p(None)), code_of("cuStreamQuery", stream),
        code_of("cuStreamDestroy_v2", stream)]
answer([bad, alive.value, wrong, old, same, destroyed, after.value, late])
"""
    )
    assert seen == [1, 1, 1, 801, [True, True, 8, True], 201, 0, [201, 709, 0]]


def test_work_of_a_green_context_has_its_multiprocessors_and_is_waited_for_with_the_primary_one(node: Any) -> None:
    seen = node.run(
        GREEN
        + KERNELS
        + """
import time
call("cuInit", 0)
primary = c_void_p()
call("cuDevicePrimaryCtxRetain", byref(primary), 0)
call("cuCtxSetCurrent", primary)
function, spin, address = kernel(COUNT, "count"), timed(20), allocate(4)
green, context = green_context(2)
stream, whole = green_stream(green), c_void_p()
call("cuStreamCreate", byref(whole), 1)
counts = [multiprocessors(function, address, place) for place in (stream, whole)]
start = time.monotonic()
assert launch(spin, stream=stream) == 0
call("cuCtxSynchronize")
waited = time.monotonic() - start
event = c_void_p()
call("cuEventCreate", byref(event), 2)
assert launch(spin, stream=stream) == 0
call("cuGreenCtxRecordEvent", green, event)
pending = code_of("cuEventQuery", event)
call("cuStreamWaitEvent", whole, event, 0)
busy = code_of("cuStreamQuery", whole)
call("cuEventSynchronize", event)
answer([counts, waited, pending, busy, code_of("cuStreamQuery", stream)])
"""
    )
    counts, waited, pending, busy, done = seen
    assert counts == [2, 40]
    assert waited > 0.015
    assert (pending, busy, done) == (600, 600, 0)
