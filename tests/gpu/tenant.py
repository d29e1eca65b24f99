"""A tenant's program: it uses a GPU through CUDA's driver interface, and knows nothing of gpuplane.

    python tenant.py calibrate | busy LOOPS SECONDS [--contexts N] [--capture] | waits LOOPS SECONDS
                   | deep LOOPS SECONDS | memory PATH MIB | hold MIB

It says `ready` and its process ID when it is set up, begins when a line comes, and prints one line of JSON in the end.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from ctypes import byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p

MIB = 1 << 20
OUT_OF_MEMORY = 2
CHUNK_SECONDS = 0.1  # queued between two waits, so that no run outlasts its time
# A loop of a number of dependent steps: the work is the same however often the GPU turns to others meanwhile.
PTX = b"""
.version 4.0
.target sm_30
.address_size 64
.visible .entry work(.param .u64 out, .param .u32 loops)
{
    .reg .pred %more; .reg .u32 %i, %n, %x; .reg .u64 %to;
    ld.param.u64 %to, [out];
    ld.param.u32 %n, [loops];
    cvta.to.global.u64 %to, %to;
    mov.u32 %i, 0;
    mov.u32 %x, %tid.x;
again:
    mad.lo.u32 %x, %x, 1664525, 1013904223;
    add.u32 %i, %i, 1;
    setp.lt.u32 %more, %i, %n;
    @%more bra again;
    st.global.u32 [%to], %x;
    ret;
}
\0"""


class Failed(Exception):
    """A call that did not succeed: its name and CUresult."""


class Gpu:
    """The first GPU that this program sees, with the kernel `work` in each of some contexts."""

    def __init__(self, contexts: int = 1) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.contexts, self.functions, self.outs = [], [], []
        for _ in range(contexts):
            context, module, function, out = c_void_p(), c_void_p(), c_void_p(), c_uint64()
            self.call("cuCtxCreate_v2", byref(context), 0, 0)
            self.call("cuModuleLoadData", byref(module), PTX)
            self.call("cuModuleGetFunction", byref(function), module, b"work")
            self.call("cuMemAlloc_v2", byref(out), c_size_t(4096))
            self.contexts.append(context)
            self.functions.append(function)
            self.outs.append(out)

    def call(self, name: str, *arguments: object, may_be: int = 0) -> int:
        code: int = getattr(self.cuda, name)(*arguments)
        if code not in (0, may_be):
            raise Failed(f"{name}: {code}")
        return code

    def launcher(self, loops: int, stream: c_void_p | None = None, which: int = 0) -> Callable[[], None]:
        """A function that launches the kernel; it does as little as Python allows."""
        number, out = c_uint32(loops), self.outs[which]
        arguments = (c_void_p * 2)(ctypes.addressof(out), ctypes.addressof(number))
        launch, function = self.cuda.cuLaunchKernel, self.functions[which]

        def launched() -> None:
            if code := launch(function, 1, 1, 1, 32, 1, 1, 0, stream, arguments, None):
                raise Failed(f"cuLaunchKernel: {code}")

        # The driver reads them at each launch.
        launched.alive = (number, out, arguments)  # type: ignore[attr-defined]
        return launched

    def wait(self) -> None:
        self.call("cuCtxSynchronize")


def begin() -> None:
    sys.stdout.write(f"ready {os.getpid()}\n")
    sys.stdout.flush()
    sys.stdin.readline()


def calibrate() -> object:
    """Seconds of one loop, alone."""
    gpu = Gpu()
    begin()
    loops = 1000
    while True:
        launch = gpu.launcher(loops)
        launch()
        gpu.wait()
        started = time.perf_counter()
        launch()
        gpu.wait()
        took = time.perf_counter() - started
        if took > 0.05 or loops > 1 << 30:
            return {"loop_seconds": took / loops}
        loops *= 2


def busy(loops: int, seconds: float, settled: float, contexts: int, capture: bool) -> object:
    """Kernels a second, one after the other for as long as it may; and of each, in seconds, the longest wait."""
    gpu = Gpu(contexts)
    stream = None
    if capture:
        captured, stream = c_void_p(), c_void_p()
        gpu.call("cuStreamCreate", byref(captured), 1)
        gpu.call("cuStreamCreate", byref(stream), 1)
        gpu.call("cuStreamBeginCapture_v2", captured, 2)  # relaxed, and never ended
    launches = [gpu.launcher(loops, stream, which) for which in range(contexts)]

    def drain() -> None:
        if capture:
            gpu.call("cuStreamSynchronize", stream)
        else:
            for context in gpu.contexts if contexts > 1 else ():
                gpu.call("cuCtxSetCurrent", context)
                gpu.wait()
            if contexts == 1:
                gpu.wait()

    def chunk(size: int) -> int:
        for number in range(size):
            if contexts > 1:
                gpu.call("cuCtxSetCurrent", gpu.contexts[number % contexts])
            launches[number % contexts]()
        drain()
        return size

    begin()
    started = time.perf_counter()
    size = contexts
    while time.perf_counter() - started < settled:
        before = time.perf_counter()
        done = chunk(size)
        each = (time.perf_counter() - before) / done
        size = max(contexts, math.ceil(CHUNK_SECONDS / each))
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        count += chunk(size)
    return {"rate": count / (time.perf_counter() - started)}


def waits(loops: int, seconds: float) -> object:
    """The longest that one kernel and its end took, in seconds: what a neighbour feels."""
    gpu = Gpu()
    launch = gpu.launcher(loops)
    begin()
    longest, started = 0.0, time.perf_counter()
    while (before := time.perf_counter()) - started < seconds:
        launch()
        gpu.wait()
        longest = max(longest, time.perf_counter() - before)
    return {"longest": longest}


def deep(loops: int, seconds: float) -> object:
    """Launches that a driver takes a thousand of at once: many short ones, then a batch of long ones, and so on."""
    gpu = Gpu()
    short, long = gpu.launcher(max(1, loops // 200)), gpu.launcher(loops)
    begin()
    started = time.perf_counter()
    rounds = 0
    while time.perf_counter() - started < seconds:
        for _ in range(1000):
            short()
        for _ in range(64):
            long()
        rounds += 1
        gpu.wait()
    return {"rounds": rounds}


def pieces(gpu: Gpu, path: str, size: int) -> Iterator[int]:
    """Yield the result of each allocation of `size` bytes by a path of the driver."""
    pool = c_void_p()
    address = c_uint64
    while True:
        if path == "cuMemAlloc":
            yield gpu.cuda.cuMemAlloc_v2(byref(address()), c_size_t(size))
        elif path == "cuMemAllocPitch":
            pitch = c_size_t()
            yield gpu.cuda.cuMemAllocPitch_v2(
                byref(address()), byref(pitch), c_size_t(1 << 16), c_size_t(size >> 16), 4
            )
        elif path == "cuMemAllocAsync":
            yield gpu.cuda.cuMemAllocAsync(byref(address()), c_size_t(size), None)
        elif path == "cuMemAllocFromPoolAsync":
            if not pool:
                gpu.call("cuDeviceGetDefaultMemPool", byref(pool), 0)
            yield gpu.cuda.cuMemAllocFromPoolAsync(byref(address()), c_size_t(size), pool, None)
        elif path == "cuMemAllocManaged":
            yield gpu.cuda.cuMemAllocManaged(byref(address()), c_size_t(size), 1)
        elif path == "cuMemCreate":
            properties = (c_int * 8)(1, 0, 1, 0)  # pinned, of device 0
            yield gpu.cuda.cuMemCreate(byref(address()), c_size_t(size), properties, c_uint64(0))
        elif path == "cuArrayCreate":
            shape = (c_size_t * 3)(1 << 14, size >> 16)
            ctypes.memmove(ctypes.addressof(shape) + 16, (c_int * 2)(0x20, 1), 8)  # floats of one channel
            yield gpu.cuda.cuArrayCreate_v2(byref(c_void_p()), byref(shape))
        else:
            raise Failed(f"no path {path}")


def memory(path: str, mib: int) -> object:
    """MiB that the path gives until it refuses, in pieces of `mib`."""
    gpu = Gpu()
    begin()
    held = 0
    for code in pieces(gpu, path, mib * MIB):
        if code:
            return {"held_mib": held, "code": code}
        held += mib
    return {}


def hold(mib: int) -> object:
    """Take memory, work, and wait for one's end."""
    gpu = Gpu()
    gpu.call("cuMemAlloc_v2", byref(c_uint64()), c_size_t(mib * MIB))
    launch = gpu.launcher(1000)
    begin()
    while True:
        launch()


def main(words: list[str]) -> None:
    flags = [word for word in words if word.startswith("--")]
    mode, *rest = [word for word in words if not word.startswith("--")]
    if mode == "calibrate":
        answer = calibrate()
    elif mode == "busy":
        contexts = next((int(flag.partition("=")[2]) for flag in flags if flag.startswith("--contexts=")), 1)
        answer = busy(int(rest[0]), float(rest[1]), float(rest[2]), contexts, "--capture" in flags)
    elif mode == "waits":
        answer = waits(int(rest[0]), float(rest[1]))
    elif mode == "deep":
        answer = deep(int(rest[0]), float(rest[1]))
    elif mode == "memory":
        answer = memory(rest[0], int(rest[1]))
    else:
        answer = hold(int(rest[0]))
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Failed as error:
        sys.stdout.write(json.dumps({"failed": str(error)}) + "\n")
        sys.exit(1)
