"""NVIDIA's own Python binding runs unmodified on the simulated driver."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed on this platform")

PROGRAM = '''
from array import array
from cuda.bindings import driver

def ok(result):
    assert result[0] == driver.CUresult.CUDA_SUCCESS, result
    return result[1] if len(result) == 2 else result[1:]

SAXPY = b"""
.version 7.0
.target sm_50
.address_size 64
.visible .entry saxpy(.param .u64 px, .param .u64 py, .param .f32 pa, .param .u32 pn)
{
    .reg .pred %p<2>; .reg .f32 %f<5>; .reg .b32 %r<6>; .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [px]; ld.param.u64 %rd2, [py]; ld.param.f32 %f1, [pa]; ld.param.u32 %r2, [pn];
    mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x; mad.lo.s32 %r1, %r3, %r4, %r5;
    setp.ge.s32 %p1, %r1, %r2; @%p1 bra $L__BB0_2;
    cvta.to.global.u64 %rd3, %rd1; mul.wide.s32 %rd4, %r1, 4; add.s64 %rd5, %rd3, %rd4;
    cvta.to.global.u64 %rd6, %rd2; add.s64 %rd7, %rd6, %rd4;
    ld.global.f32 %f2, [%rd5]; ld.global.f32 %f3, [%rd7]; fma.rn.f32 %f4, %f2, %f1, %f3; st.global.f32 [%rd7], %f4;
$L__BB0_2:
    ret;
}
"""
COUNT = 1000
ok(driver.cuInit(0))
device = ok(driver.cuDeviceGet(0))
name = ok(driver.cuDeviceGetName(64, device)).rstrip(b"\\0 ").decode()
context = ok(driver.cuDevicePrimaryCtxRetain(device))
ok(driver.cuCtxSetCurrent(context))
stream = ok(driver.cuStreamCreate(0))
x, y = array("f", range(COUNT)), array("f", [1.0] * COUNT)
on_gpu = [ok(driver.cuMemAlloc(4 * COUNT)) for _ in range(2)]
for target, source in zip(on_gpu, (x, y)):
    ok(driver.cuMemcpyHtoDAsync(target, source.buffer_info()[0], 4 * COUNT, stream))
LOADING
values = ((*on_gpu, 2.0, COUNT), (None, None, ctypes.c_float, ctypes.c_uint32))
LAUNCHING
ok(driver.cuMemcpyDtoHAsync(y.buffer_info()[0], on_gpu[1], 4 * COUNT, stream))
ok(driver.cuStreamSynchronize(stream))
for address in on_gpu:
    ok(driver.cuMemFree(address))
ok(driver.cuDevicePrimaryCtxRelease(device))
answer([name, list(y) == [2.0 * i + 1 for i in range(COUNT)], driver.cuModuleLoadData(b"no PTX")[0].name])
'''

MODULE = 'function = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(SAXPY)), b"saxpy"))'
LIBRARY = """
library = ok(driver.cuLibraryLoadData(SAXPY, [], [], 0, [], [], 0))
function = ok(driver.cuKernelGetFunction(ok(driver.cuLibraryGetKernel(library, b"saxpy"))))
"""
PLAIN = "ok(driver.cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, stream, values, 0))"
EXTENDED = """
config = driver.CUlaunchConfig()
config.gridDimX, config.gridDimY, config.gridDimZ = 4, 1, 1
config.blockDimX, config.blockDimY, config.blockDimZ = 256, 1, 1
config.hStream = stream
ok(driver.cuLaunchKernelEx(config, function, values, 0))
"""


@pytest.mark.parametrize("loading", [MODULE, LIBRARY], ids=["module", "library"])
@pytest.mark.parametrize("launching", [PLAIN, EXTENDED], ids=["launch", "launch with attributes"])
@pytest.mark.parametrize("default_stream", ["0", "1"], ids=["legacy stream", "per-thread stream"])
def test_saxpy(node: Any, loading: str, launching: str, default_stream: str) -> None:
    program = PROGRAM.replace("LOADING", loading).replace("LAUNCHING", launching)
    answer = node.run(program, CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM=default_stream)
    # cuLaunch takes the context to be current; releasing the primary context ended it, hence the last result.
    assert answer == ["Tesla T4", True, "CUDA_ERROR_CONTEXT_IS_DESTROYED"]
