"""NCCL under shares, where it is installed: an all-reduce of two programs, each in its own share.

    python collectives.py RANK FILE MIB COUNT

The program below is a tenant's. It finds the other one by FILE, and prints its seconds as a line of JSON; `measured`
runs two. NCCL takes one program for each GPU, so a machine with one GPU is skipped where NCCL refuses the second.

Source: NCCL, "API"; nccl.h of 2.x.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from ctypes import byref, c_char, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # as a tenant's program this file imports nothing of the harness
    from tests.gpu.findings import Finding
    from tests.gpu.tenants import Tenant, Tenants

RANKS = 2
FLOAT32, SUM = 7, 0
INVALID_USAGE = 5
MEET_SECONDS = 60.0


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", c_char * 128),)


def library() -> Path | None:
    """Return NCCL as its wheel has it, nvidia-nccl-cu12 or another; None where there is none."""
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return None
    places = (
        [] if found is None else [Path(place) / "lib/libnccl.so.2" for place in found.submodule_search_locations or ()]
    )
    return next((place for place in places if place.is_file()), None)


def measured(tenants: Tenants, gpus: int, quick: bool) -> Iterator[Finding]:
    """All-reduces without a share, and in shares. Raises Lacking where they cannot run."""
    from tests.gpu.findings import Finding
    from tests.gpu.tenants import Lacking

    if library() is None:
        raise Lacking("NCCL is not installed: pip install nvidia-nccl-cu12")
    mib, count = (1, 5) if quick else (64, 50)
    places = (tenants, tenants.on("1") if gpus > 1 else tenants)
    core = 100 if gpus > 1 else 50
    alone = _pair(places, core, mib, count, held=False)
    if alone is None:
        raise Lacking(f"NCCL takes one program for each GPU, and there is {gpus}")
    shared = _pair(places, core, mib, count)
    runs = [("no share", alone), (f"shares of {core}%", shared)]
    if gpus > 1:
        runs.append(("shares of 50%", _pair(places, 50, mib, count)))
    for name, answers in runs:
        right = answers is not None and all(answer["right"] for answer in answers)
        yield Finding("NCCL", f"{name}: the sum is right", float(right), "", 1)
        seconds = max(answer["seconds"] for answer in answers or [{"seconds": float("inf")}])
        yield Finding("NCCL", f"{name}: all-reduce of {mib} MiB", 1e3 * seconds / count, "ms")


def _pair(
    places: tuple[Tenants, Tenants], core: int, mib: int, count: int, *, held: bool = True
) -> list[dict[str, Any]] | None:
    """The answers of two programs in shares of `core` percent, which hold them or not; None where NCCL refuses them."""
    running: list[Tenant] = []
    with tempfile.TemporaryDirectory() as folder:
        words = (Path(folder) / "id", mib, count)
        try:
            for rank, place in enumerate(places):
                running.append(place.start(rank, *words, core=core, program=__file__, held=held))
            for tenant in running:
                tenant.go()
            answers = [tenant.answer() for tenant in running]
        except BaseException:
            for tenant in running:  # one waits for the other
                with contextlib.suppress(ProcessLookupError):
                    tenant.kill()
            raise
    return None if any("refused" in answer for answer in answers) else answers


def main(words: list[str]) -> None:
    rank, file, mib, count = int(words[0]), Path(words[1]), int(words[2]), int(words[3])
    cuda, nccl = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(str(library()))
    elements = (mib << 20) // 4

    def call(of: Any, name: str, *arguments: object) -> None:
        if code := getattr(of, name)(*arguments):
            raise RuntimeError(f"{name}: {code}")

    context, data = c_void_p(), c_uint64()
    call(cuda, "cuInit", 0)
    # NCCL works in the context that CUDA's runtime uses.
    call(cuda, "cuDevicePrimaryCtxRetain", byref(context), 0)
    call(cuda, "cuCtxSetCurrent", context)
    call(cuda, "cuMemAlloc_v2", byref(data), c_size_t(4 * elements))
    ones = (ctypes.c_float * elements).from_buffer(bytearray(struct.pack("f", 1.0) * elements))
    call(cuda, "cuMemcpyHtoD_v2", data, ones, c_size_t(4 * elements))
    sys.stdout.write(f"ready {os.getpid()}\n")
    sys.stdout.flush()
    sys.stdin.readline()
    nccl.ncclCommInitRank.argtypes = (c_void_p, c_int, UniqueId, c_int)
    communicator = c_void_p()
    if code := nccl.ncclCommInitRank(byref(communicator), RANKS, _meet(nccl, rank, file), rank):
        say = {"refused": code} if code == INVALID_USAGE else {"failed": f"ncclCommInitRank: {code}"}
        sys.stdout.write(json.dumps(say) + "\n")
        return
    started = time.perf_counter()
    for _ in range(count):
        buffer, length = c_void_p(data.value), c_size_t(elements)
        call(nccl, "ncclAllReduce", buffer, buffer, length, FLOAT32, SUM, communicator, None)
    call(cuda, "cuCtxSynchronize")
    seconds = time.perf_counter() - started
    call(cuda, "cuMemcpyDtoH_v2", ones, data, c_size_t(4 * elements))
    right = {ones[0], ones[elements // 2], ones[elements - 1]} == {float(RANKS**count)}
    call(nccl, "ncclCommDestroy", communicator)
    sys.stdout.write(json.dumps({"seconds": seconds, "right": right}) + "\n")


def _meet(nccl: Any, rank: int, file: Path) -> UniqueId:
    """The ID that the first program makes, and the other one reads."""
    made = UniqueId()
    if rank == 0:
        if code := nccl.ncclGetUniqueId(byref(made)):
            raise RuntimeError(f"ncclGetUniqueId: {code}")
        fresh = file.with_suffix(".new")
        fresh.write_bytes(bytes(made))
        fresh.rename(file)
        return made
    until = time.monotonic() + MEET_SECONDS
    while not file.exists():
        if time.monotonic() > until:
            raise RuntimeError("the other program made no ID")
        time.sleep(0.01)
    return UniqueId.from_buffer_copy(file.read_bytes())


if __name__ == "__main__":
    main(sys.argv[1:])
