"""Finds the driver's real libraries on this machine, for modules that put others before them."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.hardware.library import find_library
from kubekit.errors import Terminal

CUDA: Final = "libcuda.so.1"
NVML: Final = "libnvidia-ml.so.1"
_LDCONFIG: Final = ("/sbin/ldconfig", "/usr/sbin/ldconfig")
# How `ldconfig -p` marks libraries of this machine's 64-bit programs.
_MARKS: Final = {"x86_64": "x86-64", "aarch64": "AArch64"}


class RealLibraries(msgspec.Struct, frozen=True):
    """The driver's libraries, by their real paths."""

    cuda: Path
    nvml: Path


def find_real(
    environ: Mapping[str, str], *, root: Path = Path("/"), first: Iterable[Path] = (), cache: str | None = None
) -> RealLibraries:
    """The libraries that a program of this machine would load.

    Looked for in the directories `first`, in LD_LIBRARY_PATH, in the loader's cache, where distributions put them, and
    below `/run/nvidia/driver`, where an installed driver has its root. Both have to lie in one place: two halves of
    different drivers do not work together.

    Args:
        root: where the search in fixed places begins.
        cache: what `ldconfig -p` says; asked when None.

    Raises:
        Terminal: there are none.
    """
    looked = []
    for place, cuda, nvml in _candidates(environ, root, first, cache):
        if cuda is not None and nvml is not None:
            return RealLibraries(cuda, nvml)
        if cuda is not None or nvml is not None:
            looked.append(f"{place} has only {(cuda or nvml or Path()).name}")
    raise Terminal(
        "no NVIDIA driver found: " + ("; ".join(looked) or f"no {CUDA} and {NVML}"),
        where=f"LD_LIBRARY_PATH, the loader's cache, {root / 'usr/lib'}, {root / names.DRIVER_ROOT}",
        cure="install the NVIDIA driver, or add --simulate t4 to play a GPU",
    )


def _candidates(
    environ: Mapping[str, str], root: Path, first: Iterable[Path], cache: str | None
) -> Iterator[tuple[str, Path | None, Path | None]]:
    own = [Path(word) for word in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if word]
    for folder in (*first, *own):
        yield str(folder), _file(folder / CUDA), _file(folder / NVML)
    known = cached(_ask_cache() if cache is None else cache)
    yield "the loader's cache", known.get(CUDA), known.get(NVML)
    for place in (root, root / names.DRIVER_ROOT):
        yield str(place), find_library(place, CUDA), find_library(place, NVML)


def cached(text: str, machine: str = "") -> dict[str, Path]:
    """The driver's libraries in what `ldconfig -p` says: the first of each name for this kind of machine."""
    mark = _MARKS.get(machine or platform.machine(), "")
    found: dict[str, Path] = {}
    for line in text.splitlines():
        name, _, rest = line.strip().partition(" (")
        kind, arrow, path = rest.partition(") => ")
        if name in (CUDA, NVML) and arrow and mark in kind and name not in found:
            real = _file(Path(path.strip()))
            if real is not None:
                found[name] = real
    return found


def _ask_cache() -> str:
    program = next((path for path in _LDCONFIG if Path(path).is_file()), None)
    if program is None:
        return ""  # musl has no cache
    done = subprocess.run([program, "-p"], capture_output=True, text=True, check=False, timeout=10)
    return done.stdout


def _file(path: Path) -> Path | None:
    return path.resolve() if path.is_file() else None
