"""Programs that tests run on simulated GPUs."""

from __future__ import annotations

SPIN = """
.version 7.0
.target sm_35
.address_size 64
.visible .entry spin(.param .u64 ns)
{
    .reg .pred %p; .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [ns];
    mov.u64 %rd2, %globaltimer;
again:
    mov.u64 %rd3, %globaltimer;
    sub.s64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p, %rd4, %rd1;
    @%p bra again;
    ret;
}
"""
"""A kernel that runs for as many nanoseconds as its parameter is."""

LOOK = """
import ctypes, json, os, time
seen = {"why": os.environ.get("GPUPLANE_NO_GPU") or None, "limits": os.environ.get("GPUPLANE_LIMITS"), "gpus": 0}
try:
    cuda = ctypes.CDLL("libcuda.so.1")
    count, total, device = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_int()
    if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
        seen["gpus"] = count.value
        cuda.cuDeviceGet(ctypes.byref(device), 0)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
        seen["memory"] = total.value >> 20
except OSError:
    pass
print(json.dumps(seen), flush=True)
time.sleep(3600)
"""
"""A program that prints what it sees of GPUs. It runs on, so that a test can tell it from a program that ended."""
