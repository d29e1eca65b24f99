"""The validation workload: adds two vectors on a GPU and checks every element.

    python -m gpuplane.validator.vectoradd [--gpu UUID|INDEX] [--library FILE]

Without `--library` the loader finds libcuda, as for any program in a pod. The output is that of the CUDA sample of this
name. On success it ends with 0. Otherwise `Test FAILED` is on stdout, `what`, `where` and `cure` are on stderr, and it
ends with 1 (the GPU or the driver does not do what it should), 2 (wrong usage) or 3 (there is no driver library to
ask).

It is the whole program of a container that starts often, so it imports next to nothing, and its PTX is old enough for
every GPU since Kepler: the driver compiles it for the GPU that it finds.
"""

from __future__ import annotations

import ctypes
import os
import sys
from array import array

from gpuplane.validator.driver_api import CudaDevice, CudaDriver
from kubekit.errors import KubekitError, NoAnswer, Retryable, Terminal, UsageError

TYPE_CHECKING = False  # as type checkers read it, without importing typing
if TYPE_CHECKING:
    from typing import Final

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


def inputs() -> tuple[bytes, bytes]:
    """Two random vectors of 32-bit floats 1 + r / 65536, r a 16-bit integer: any two have an exact sum.

    Made with one operation on all elements at once, the vector taken as one long integer: 16 random bits of each
    element below its sign, exponent and first mantissa bit.
    """
    return _as_bytes(_RANDOM & _random_bits() | _ONE), _as_bytes(_RANDOM & _random_bits() | _ONE)


def sums(a: bytes, b: bytes) -> bytes:
    """The sum of two vectors of `inputs`, element by element, again on all at once.

    1 + r/65536 + 1 + s/65536 = 2 * (1 + (r + s)/131072): exponent 1, and the mantissas' sum halved.
    """
    mantissas = (_as_integer(a) & _RANDOM) + (_as_integer(b) & _RANDOM)
    return _as_bytes(mantissas >> 1 | _TWO)


def _as_integer(vector: bytes) -> int:
    return int.from_bytes(vector, "little")


def _as_bytes(vector: int) -> bytes:
    return vector.to_bytes(4 * ELEMENTS, "little")


def _each(word: int) -> int:
    return _as_integer(word.to_bytes(4, "little") * ELEMENTS)


def _random_bits() -> int:
    return _as_integer(os.urandom(4 * ELEMENTS))


_RANDOM: Final = _each(0x007FFF80)  # the upper 16 of the 23 bits of a mantissa
_ONE: Final = _each(0x3F800000)  # 1.0
_TWO: Final = _each(0x40000000)  # 2.0


def first_difference(got: bytes, expected: bytes) -> tuple[int, float, float] | None:
    """The first element that differs in any bit with both its values, None when there is none."""
    if got == expected:
        return None
    pairs = zip(range(0, len(expected), 4), array("f", got), array("f", expected), strict=True)
    return next((at // 4, x, y) for at, x, y in pairs if got[at : at + 4] != expected[at : at + 4])


def add_on(driver: CudaDriver, device: CudaDevice) -> None:
    """Run the workload on one GPU; raises CudaError or WrongResult."""
    where = str(device)
    a, b = inputs()
    c = ctypes.create_string_buffer(4 * ELEMENTS)
    size = 4 * ELEMENTS
    with (
        driver.context(device),
        driver.memory(size, where) as on_gpu_a,
        driver.memory(size, where) as on_gpu_b,
        driver.memory(size, where) as on_gpu_c,
    ):
        say("Copy input data from the host memory to the CUDA device")
        for target, source in ((on_gpu_a, a), (on_gpu_b, b), (on_gpu_c, c)):
            driver.call("cuMemcpyHtoD_v2", target, source, ctypes.c_size_t(size), where=where)
        kernel = driver.function(PTX, "vector_add", where)
        say(f"CUDA kernel launch with {BLOCKS} blocks of {THREADS} threads")
        values = (on_gpu_a, on_gpu_b, on_gpu_c, ctypes.c_uint32(ELEMENTS))
        arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        shape = (BLOCKS, 1, 1, THREADS, 1, 1)
        driver.call("cuLaunchKernel", kernel, *shape, 0, None, arguments, None, where=where)
        driver.call("cuCtxSynchronize", where=where)
        say("Copy output data from the CUDA device to the host memory")
        driver.call("cuMemcpyDtoH_v2", c, on_gpu_c, ctypes.c_size_t(size), where=where)
    difference = first_difference(c.raw, sums(a, b))
    if difference is not None:
        raise WrongResult(*difference, where=where)


def options(arguments: list[str]) -> tuple[str, str]:
    """The `--gpu` ("0" without one) and the `--library` ("" without one) of a command line; raises UsageError."""
    found = {"--gpu": "0", "--library": ""}
    left = iter(arguments)
    for argument in left:
        name, equals, value = argument.partition("=")
        value = value if equals else next(left, "")
        if name not in found or not value:
            raise UsageError(
                "wrong arguments: " + " ".join(arguments), cure="vectoradd [--gpu UUID|INDEX] [--library FILE]"
            )
        found[name] = value
    return found["--gpu"], found["--library"]


def main(arguments: list[str]) -> int:
    try:
        wanted, library = options(arguments)
        say(f"[Vector addition of {ELEMENTS} elements]")
        driver = CudaDriver(library)
        add_on(driver, driver.select(wanted))
    except KubekitError as error:
        if not isinstance(error, UsageError):
            say("Test FAILED")
        lines = [("what", error.what), ("where", error.where), ("cure", error.cure)]
        sys.stderr.write("".join(f"{name:<7}{text}\n" for name, text in lines if text))
        return 2 if isinstance(error, UsageError) else 3 if isinstance(error, Retryable | NoAnswer) else 1
    say("Test PASSED")
    say("Done")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
