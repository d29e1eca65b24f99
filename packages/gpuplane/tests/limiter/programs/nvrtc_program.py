"""CUDA C compiled by NVRTC to PTX and run by the driver API; prints what differs from NumPy, as JSON."""

import json
import sys
from pathlib import Path

import numpy as np
from cuda.bindings import driver, nvrtc

HEADERS = next(Path(sys.prefix).glob("lib/python*/site-packages/nvidia/cuda_runtime/include"))
HEAD = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <cuda_pipeline.h>\n#define I threadIdx.x\n"
KERNEL = 'extern "C" __global__ void k'
random = np.random.default_rng(7)
WRONG = []


def ok(result):
    assert result[0] == 0, result
    return result[1] if len(result) == 2 else result[1:]


ok(driver.cuInit(0))
device = ok(driver.cuDeviceGet(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(device))))
major, minor = (ok(driver.cuDeviceGetAttribute(attribute, device)) for attribute in (75, 76))


def compiled(source):
    program = ok(nvrtc.nvrtcCreateProgram((HEAD + source).encode(), b"k.cu", 0, [], []))
    options = [f"--gpu-architecture=compute_{major}{minor}".encode(), f"-I{HEADERS}".encode()]
    if nvrtc.nvrtcCompileProgram(program, len(options), options)[0] != 0:
        log = bytearray(ok(nvrtc.nvrtcGetProgramLogSize(program)))
        ok(nvrtc.nvrtcGetProgramLog(program, log))
        raise SystemExit(log.decode())
    ptx = bytearray(ok(nvrtc.nvrtcGetPTXSize(program)))
    ok(nvrtc.nvrtcGetPTX(program, ptx))
    return ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(bytes(ptx))), b"k"))


def launch(source, *arrays):
    """Run a block with a thread for each element of the first array; return all arrays as they are then."""
    function = compiled(source)
    memory = [ok(driver.cuMemAlloc(array.nbytes)) for array in arrays]
    for place, array in zip(memory, arrays, strict=True):
        ok(driver.cuMemcpyHtoD(place, array.ctypes.data, array.nbytes))
    values = (tuple(memory), (None,) * len(memory))
    code = driver.cuLaunchKernel(function, 1, 1, 1, min(len(arrays[0]), 64), 1, 1, 0, 0, values, 0)[0]
    code = code or driver.cuCtxSynchronize()[0]
    results = [np.empty_like(array) for array in arrays]
    if code == 0:
        for place, array in zip(memory, results, strict=True):
            ok(driver.cuMemcpyDtoH(array.ctypes.data, place, array.nbytes))
    return int(code), results


def compare(name, source, wanted, *arrays, tolerance=1e-6):
    code, results = launch(source, *arrays)
    if code or not np.allclose(results[-1].astype("f8"), np.asarray(wanted, "f8"), rtol=tolerance, atol=tolerance):
        WRONG.append([name, code, results[-1].tolist(), np.asarray(wanted).tolist()])


a, b, none = random.random(64).astype("f2") + np.float16(0.5), random.random(64).astype("f2"), np.zeros(64, "f2")
A, B = a.astype("f4"), b.astype("f4")
FMA = "(__half *a, __half *b, __half *c) { c[I] = __hfma(a[I], b[I], a[I]); }"
compare("fma of halves", KERNEL + FMA, A * B + A, a, b, none, tolerance=1e-3)
PAIRS = "(__half2 *a, __half2 *b, __half2 *c) { if (I < 32) c[I] = __hadd2(__hmul2(a[I], b[I]), a[I]); }"
compare("pairs of halves", KERNEL + PAIRS, A * B + A, a, b, none, tolerance=2e-3)
FUNCTIONS = "(__half *a, __half *c) { c[I] = hexp(a[I]) / hsqrt(a[I]) + __hmax(a[I], a[0]); }"
compare(
    "functions of halves", KERNEL + FUNCTIONS, np.exp(A) / np.sqrt(A) + np.maximum(A, A[0]), a, none, tolerance=5e-3
)
SUM = "(__half *a, float *c) { atomicAdd(c, __half2float(a[I])); }"
compare("sum of halves", KERNEL + SUM, [A.sum()], a, np.zeros(1, "f4"), tolerance=1e-4)

PIPELINE = """(float4 *a, float4 *c) {
    __shared__ float4 tile[2][16];
    if (I >= 16) return;
    __pipeline_memcpy_async(&tile[0][I], &a[I], 16);
    __pipeline_commit();
    for (int k = 0; k < 4; k++) {
        if (k < 3) __pipeline_memcpy_async(&tile[(k + 1) & 1][I], &a[(k + 1) * 16 + I], 16);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncwarp(0xffff);
        float4 v = tile[k & 1][15 - I];
        c[k * 16 + I] = make_float4(2 * v.x, v.y, v.z, v.w);
        __syncwarp(0xffff);
    }
}"""
x = random.random(256).astype("f4")
wanted = x.reshape(4, 16, 4)[:, ::-1, :] * np.array([2, 1, 1, 1], "f4")
compare("pipeline of copies", KERNEL + PIPELINE, wanted.reshape(256), x, np.zeros(256, "f4"))

SWITCH = """(int *a, int *c) {
    switch (a[I]) {
    case 0: c[I] = 7; break;
    case 1: c[I] = 3 * a[I] + 1; break;
    case 2: c[I] = __popc(a[I]); break;
    case 3: c[I] = a[63 - I]; break;
    case 4: c[I] = -5; break;
    case 5: c[I] = a[I] ^ 3; break;
    case 6: c[I] = __clz(a[I]); break;
    case 7: c[I] = a[I] / 3; break;
    default: c[I] = 99;
    }
}"""
n = np.arange(64, dtype="i4") % 10
table = {0: 7, 1: 4, 2: 1, 4: -5, 5: 6, 6: 29, 7: 2}
wanted = [n[63 - i] if v == 3 else table.get(int(v), 99) for i, v in enumerate(n)]
compare("switch", KERNEL + SWITCH, wanted, n, np.zeros(64, "i4"))
WARPS = "(int *a, unsigned *c) { c[I] = (__match_any_sync(~0u, a[I] & 3) >> 1) + __syncthreads_count(a[I] & 1); }"
same = [sum(1 << k for k in range(32) if n[i // 32 * 32 + k] % 4 == v % 4) for i, v in enumerate(n)]
compare("warps", KERNEL + WARPS, [(word >> 1) + int((n % 2).sum()) for word in same], n, np.zeros(64, "u4"))

VIRTUAL = """struct Plain { virtual __device__ float f(float x) { return x; } };
struct Twice : Plain { __device__ float f(float x) override { return 2 * x; } };
extern "C" __global__ void k(float *a, float *c) {
    Plain plain;
    Twice twice;
    Plain *chosen = a[I] > 0.5f ? (Plain *)&twice : &plain;
    c[I] = chosen->f(a[I]);
}"""
y, none = random.random(64).astype("f4"), np.zeros(64, "f4")
compare("virtual functions", VIRTUAL, np.where(y > 0.5, 2 * y, y), y, none)
POINTERS = "__device__ float (*table[2])(float) = {sinf, cosf};\n" + KERNEL
wanted = np.where(np.arange(64) % 2, np.cos(y), np.sin(y))
compare("pointers", POINTERS + "(float *a, float *c) { c[I] = table[I & 1](a[I]); }", wanted, y, none, tolerance=1e-5)

PRINT = '(int *a) { if (I < 2) printf("thread %d of %5.2f%% %s %lld\\n", I, 12.345, "text", 1ll << 40); }'
printed, _ = launch(KERNEL + PRINT, n)
# The expansion of assert(a[I] < 9) by assert.h, for which NVRTC has no header.
FAIL = 'extern "C" __device__ void __assertfail(const char *, const char *, unsigned, const char *, size_t);\n'
CALL = '(int *a) { if (a[I] >= 9) __assertfail("a[I] < 9", "k.cu", 7, "k", 1); }'
asserted, _ = launch(FAIL + KERNEL + CALL, n)
print(json.dumps({"wrong": WRONG, "printed": printed, "asserted": asserted}), flush=True)
