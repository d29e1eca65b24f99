"""Limits of memory on every path by which a program takes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.gpu.findings import Finding
from tests.gpu.tenants import Broken, Tenants

PATHS: Final = (
    "cuMemAlloc",
    "cuMemAllocPitch",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocManaged",
    "cuMemCreate",
    "cuArrayCreate",
)
LIMIT_MIB: Final = 2048
PIECE_MIB: Final = 64
CONTEXT_MIB: Final = 768  # the most that a driver's context takes of a share
REFUSED: Final = 2  # CUDA_ERROR_OUT_OF_MEMORY


def paths(tenants: Tenants) -> Iterator[Finding]:
    """MiB that each path gives a share of 2 GiB before it refuses, and that it refuses as a full GPU does."""
    for path in PATHS:
        try:
            got = tenants.run("memory", path, PIECE_MIB, core=50, memory_mib=LIMIT_MIB)
        except Broken as error:
            yield Finding("memory", f"{path} ends as it should", 0.0, "", 1)
            yield Finding("memory", f"{path}, why not", str(error)[-60:])
            continue
        yield Finding("memory", path, got["held_mib"], "MiB", LIMIT_MIB - CONTEXT_MIB - PIECE_MIB, LIMIT_MIB)
        yield Finding("memory", f"{path}, its refusal", got["code"], "", REFUSED, REFUSED)
