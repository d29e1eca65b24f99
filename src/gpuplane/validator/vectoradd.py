"""The validation workload: adds two vectors on a GPU and checks every element.

    python -m gpuplane.validator.vectoradd [--gpu UUID|INDEX]

What it prints is what people know from the CUDA sample of this name. On success it ends with 0. Otherwise
`Test FAILED` is on stdout, `what`, `where` and `cure` are on stderr, and it ends with 1 (the GPU or the driver does not
do what it should), 2 (wrong usage) or 3 (there is no driver library to ask).

It is the whole program of a container that starts often, so it imports next to nothing, and its PTX is old enough for
every GPU since Kepler: the driver compiles it for the GPU that it finds.
"""

from __future__ import annotations

import ctypes
import os
import sys
from array import array
from typing import Final

from gpuplane.errors import GpuplaneError, NoAnswer, Retryable, Terminal, Usage
from gpuplane.validator.driver_api import Device, Driver

ELEMENTS: Final = 50_000
THREADS: Final = 256
BLOCKS: Final = (ELEMENTS + THREADS - 1) // THREADS

PTX: Final = b"""
.version 4.0
.target sm_30
.address_size 64

.visible .entry vector_add(
    .param .u64 a,
    .param .u64 b,
    .param .u64 c,
    .param .u32 elements
)
{
    .reg .pred  %outside;
    .reg .u32   %block, %threads, %thread, %i, %n;
    .reg .u64   %offset, %pa, %pb, %pc;
    .reg .f32   %x, %y, %sum;

    mov.u32         %block, %ctaid.x;
    mov.u32         %threads, %ntid.x;
    mov.u32         %thread, %tid.x;
    mad.lo.u32      %i, %block, %threads, %thread;
    ld.param.u32    %n, [elements];
    setp.ge.u32     %outside, %i, %n;
    @%outside bra   done;

    ld.param.u64    %pa, [a];
    ld.param.u64    %pb, [b];
    ld.param.u64    %pc, [c];
    cvta.to.global.u64 %pa, %pa;
    cvta.to.global.u64 %pb, %pb;
    cvta.to.global.u64 %pc, %pc;
    mul.wide.u32    %offset, %i, 4;
    add.u64         %pa, %pa, %offset;
    add.u64         %pb, %pb, %offset;
    add.u64         %pc, %pc, %offset;
    ld.global.f32   %x, [%pa];
    ld.global.f32   %y, [%pb];
    add.f32         %sum, %x, %y;
    st.global.f32   [%pc], %sum;
done:
    ret;
}
\0"""


class WrongResult(Terminal):
    """The GPU computed something else than this CPU."""

    def __init__(self, element: int, got: float, expected: float, *, where: str) -> None:
        super().__init__(
            f"element {element} of {ELEMENTS} is {got:g} and should be {expected:g}",
            where=where,
            cure="take the GPU out of use: nvidia-smi -q -d ECC, dmesg for Xid lines; reset or replace it",
        )
        self.element = element


def say(line: str) -> None:
    """One line of the answer, at once: a container's log may be read while it runs, or end with it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def first_difference(got: array[float], expected: array[float]) -> int | None:
    """The first element where the two differ in any bit, None when there is none."""
    if got.tobytes() == expected.tobytes():
        return None
    return next(i for i, (x, y) in enumerate(zip(got, expected, strict=True)) if x != y or x != x)


def add_on(driver: Driver, device: Device) -> None:
    """Run the workload on one GPU; raises CudaError or WrongResult."""
    where = str(device)
    # Random 16-bit integers: every sum is exact in 32-bit floats, so the comparison is of bits, without a tolerance.
    a = array("f", array("H", os.urandom(2 * ELEMENTS)))
    b = array("f", array("H", os.urandom(2 * ELEMENTS)))
    c = array("f", bytes(4 * ELEMENTS))
    size = 4 * ELEMENTS
    with (
        driver.context(device),
        driver.memory(size, where) as on_gpu_a,
        driver.memory(size, where) as on_gpu_b,
        driver.memory(size, where) as on_gpu_c,
    ):
        say("Copy input data from the host memory to the CUDA device")
        for target, source in ((on_gpu_a, a), (on_gpu_b, b), (on_gpu_c, c)):
            driver.call("cuMemcpyHtoD_v2", target, _address(source), ctypes.c_size_t(size), where=where)
        kernel = driver.function(PTX, "vector_add", where)
        say(f"CUDA kernel launch with {BLOCKS} blocks of {THREADS} threads")
        values = (on_gpu_a, on_gpu_b, on_gpu_c, ctypes.c_uint32(ELEMENTS))
        arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        shape = (BLOCKS, 1, 1, THREADS, 1, 1)
        driver.call("cuLaunchKernel", kernel, *shape, 0, None, arguments, None, where=where)
        driver.call("cuCtxSynchronize", where=where)
        say("Copy output data from the CUDA device to the host memory")
        driver.call("cuMemcpyDtoH_v2", _address(c), on_gpu_c, ctypes.c_size_t(size), where=where)
    expected = array("f", map(float.__add__, a, b))
    element = first_difference(c, expected)
    if element is not None:
        raise WrongResult(element, c[element], expected[element], where=where)


def _address(values: array[float]) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.buffer_info()[0])


def wanted_gpu(arguments: list[str]) -> str:
    """The `--gpu` of a command line, "0" without one; raises Usage."""
    match arguments:
        case []:
            return "0"
        case ["--gpu", value]:
            return value
        case [text] if text.startswith("--gpu="):
            return text.removeprefix("--gpu=")
    raise Usage("wrong arguments: " + " ".join(arguments), cure="vectoradd [--gpu UUID|INDEX]")


def main(arguments: list[str]) -> int:
    try:
        wanted = wanted_gpu(arguments)
        say(f"[Vector addition of {ELEMENTS} elements]")
        driver = Driver()
        add_on(driver, driver.select(wanted))
    except GpuplaneError as error:
        if not isinstance(error, Usage):
            say("Test FAILED")
        lines = [("what", error.what), ("where", error.where), ("cure", error.cure)]
        sys.stderr.write("".join(f"{name:<7}{text}\n" for name, text in lines if text))
        return 2 if isinstance(error, Usage) else 3 if isinstance(error, Retryable | NoAnswer) else 1
    say("Test PASSED")
    say("Done")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
