"""NVIDIA's CUDA runtime, unmodified, on the simulated driver: alone and in a share of a GPU.

The runtime is that of CUDA 10.2, the newest to be had that asks the driver for nothing but its work. From 11.2 on it
also asks for a proof that the driver is NVIDIA's own. The simulated driver gives none, and such a runtime refuses it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import cuda_programs
from tests.support.fat_binaries import entry, fat_binary

GIB = 1 << 30
SCALE = b"""
.version 6.5
.target sm_50
.address_size 64
.visible .entry scale(.param .u64 values, .param .f32 factor, .param .u32 count)
{
    .reg .pred %p; .reg .b32 %r<6>; .reg .b64 %rd<5>; .reg .f32 %f<4>;
    ld.param.u64 %rd1, [values]; ld.param.f32 %f1, [factor]; ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r1; @%p bra END;
    cvta.to.global.u64 %rd2, %rd1; mul.wide.u32 %rd3, %r5, 4; add.s64 %rd4, %rd2, %rd3;
    ld.global.f32 %f2, [%rd4]; mul.f32 %f3, %f2, %f1; st.global.f32 [%rd4], %f3;
END:
    ret;
}
\0"""

# A program as nvcc compiles it: it registers its code when it starts, and launches by the address of a function.
PROGRAM = """
from ctypes import c_float
runtime = ctypes.CDLL({library!r})
COUNT, BYTES = 1000, c_size_t(4000)
TO_GPU, FROM_GPU = 1, 2

class Wrapper(ctypes.Structure):
    _fields_ = [("magic", c_int), ("version", c_int), ("data", c_void_p), ("unused", c_void_p)]

class Size(ctypes.Structure):
    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]

def ok(name, *arguments):
    code = getattr(runtime, name)(*arguments)
    assert code == 0, f"{{name}}: {{code}}"

image = create_string_buffer({image!r})
wrapper = Wrapper(0x466243b1, 1, ctypes.addressof(image), None)
register, register_end = getattr(runtime, "__cudaRegisterFatBinary"), getattr(runtime, "__cudaRegisterFatBinaryEnd")
register.restype = c_void_p
handle, scale = c_void_p(register(byref(wrapper))), create_string_buffer(1)
getattr(runtime, "__cudaRegisterFunction")(handle, scale, b"scale", b"scale", -1, *[None] * 5)
register_end(handle)

def compute(start, stream):
    memory, factor, count = c_void_p(), c_float(3), c_uint(COUNT)
    there, back = (c_float * COUNT)(*range(start, start + COUNT)), (c_float * COUNT)()
    ok("cudaMalloc", byref(memory), BYTES)
    ok("cudaMemcpyAsync", memory, there, BYTES, TO_GPU, stream)
    values = (c_void_p * 3)(*map(ctypes.addressof, (memory, factor, count)))
    ok("cudaLaunchKernel", scale, Size(4, 1, 1), Size(256, 1, 1), values, c_size_t(0), stream)
    ok("cudaMemcpyAsync", back, memory, BYTES, FROM_GPU, stream)
    ok("cudaStreamSynchronize", stream)
    ok("cudaFree", memory)
    return list(back) == [3.0 * value for value in range(start, start + COUNT)]

devices, version = c_int(), c_int()
ok("cudaGetDeviceCount", byref(devices))
ok("cudaRuntimeGetVersion", byref(version))
properties = create_string_buffer(4096)
ok("cudaGetDeviceProperties", properties, 0)
stream, before, after, milliseconds = c_void_p(), c_void_p(), c_void_p(), c_float()
ok("cudaStreamCreate", byref(stream))
for event in (before, after):
    ok("cudaEventCreate", byref(event))
ok("cudaEventRecord", before, stream)
right = compute(0, stream)
ok("cudaEventRecord", after, stream)
ok("cudaEventSynchronize", after)
ok("cudaEventElapsedTime", byref(milliseconds), before, after)
left, total = c_size_t(), c_size_t()
ok("cudaMemGetInfo", byref(left), byref(total))
memory = c_void_p()
too_much = runtime.cudaMalloc(byref(memory), c_size_t(total.value + MIB))
last, then = runtime.cudaGetLastError(), runtime.cudaGetLastError()
ok("cudaMalloc", byref(memory), c_size_t(MIB))
holds = ready()
ok("cudaDeviceReset")
released = ready()
answer([devices.value, version.value, properties.value.decode(), right, milliseconds.value > 0, total.value,
        [too_much, last, then], compute(500, None)])
"""


@pytest.mark.parametrize("compressed", [False, True], ids=["plain code", "compressed code"])
@pytest.mark.parametrize("memory_bytes", [0, 5 * GIB], ids=["whole GPU", "share"])
def test_a_program_of_nvcc_runs(machine: Any, memory_bytes: int, compressed: bool) -> None:
    image = fat_binary(entry(SCALE, 50, compressed=compressed))
    program = PROGRAM.format(library=str(cuda_programs.runtime()), image=image)
    variables = machine.share("a", memory_bytes=memory_bytes, core=50) if memory_bytes else machine.without_limiter()
    child = machine.start(program, variables)
    held = []
    for _ in range(2):
        assert child.stdout.readline(), child.stderr.read()
        held.append(machine.held("a") if memory_bytes else 0)
        child.stdin.write("go\n")
        child.stdin.flush()
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    whole = 15 * GIB  # about, of a T4
    *facts, total, codes, again = json.loads(output.splitlines()[-1])
    assert facts == [1, 10020, "Tesla T4", True, True]
    assert total == memory_bytes if memory_bytes else total > 0.9 * whole
    assert (codes, again) == ([2, 2, 0], True)  # cudaErrorMemoryAllocation, which the first look takes away
    if memory_bytes:
        assert held[0] >= 1 << 20 and held[1] == 0
        assert machine.store.read("a").totals[0].refused == 1


def test_a_runtime_that_wants_a_proof_of_the_driver_refuses_it(machine: Any) -> None:
    program = """
runtime = ctypes.CDLL({library!r})
count, memory = c_int(-1), c_void_p()
codes = runtime.cudaGetDeviceCount(byref(count)), runtime.cudaMalloc(byref(memory), c_size_t(8))
answer([*(code != 0 for code in codes), memory.value])
"""
    for variables in (machine.without_limiter(), machine.share("a", memory_bytes=GIB)):
        library = str(cuda_programs.newer_runtime())
        assert machine.run(program.format(library=library), variables) == [True, True, None]
