"""The program of the demo's shared pods: it keeps a GPU busy through CUDA's driver interface.

    python work.py HOLD [ASK]

allocates HOLD GiB, then tries to get ASK GiB in one piece, which may be refused, and launches kernels of 20 ms until it
is stopped. Nothing of gpuplane is imported: it is a tenant's program.
"""

from __future__ import annotations

import ctypes
import sys

GIB = 1 << 30
OUT_OF_MEMORY = 2
KERNEL_NS = 20_000_000
SPIN = b"""
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


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object, may_be: int = 0) -> int:
        code: int = getattr(cuda, name)(*arguments)
        if code not in (0, may_be):
            raise SystemExit(f"{name}: {code}")
        return code

    def take(gib: int, may_be: int = 0) -> bool:
        return not call("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(gib * GIB), may_be=may_be)

    call("cuInit", 0)
    call("cuCtxCreate_v2", ctypes.byref(ctypes.c_void_p()), 0, 0)
    take(int(sys.argv[1]))
    for ask in sys.argv[2:]:
        sys.stdout.write(f"{ask} GiB: {'given' if take(int(ask), OUT_OF_MEMORY) else 'refused'}\n")
        sys.stdout.flush()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), SPIN)
    call("cuModuleGetFunction", ctypes.byref(function), module, b"spin")
    length = ctypes.c_uint64(KERNEL_NS)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(length))
    while True:
        call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)


if __name__ == "__main__":
    main()
