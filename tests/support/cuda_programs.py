"""Programs for GPUs as NVIDIA and others publish them, installed once: `python -m tests.support.cuda_programs`.

They lie outside the tree (`$XDG_CACHE_HOME/gpuplane/cuda-programs`), each under the digest of what it is made of, so
that they are installed once for all clones: Numba with NVIDIA's compiler and runtime, as requirements-cuda.lock pins
them, and the CUDA runtime 10.2. The runtime comes out of a wheel of torchvision, the smallest that has it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NoReturn

import pytest

from tests.support import cupy_libraries

ROOT: Final = Path(__file__).resolve().parents[2]
LOCK: Final = ROOT / "requirements-cuda.lock"
CUPY_LOCK: Final = ROOT / "requirements-cupy.lock"
RUNTIME: Final = "torchvision==0.13.1 --hash=sha256:ef5fe3ec1848123cd0ec74c07658192b3147dcd38e507308c790d5943e87b88c\n"
_UV: Final = Path(sys.executable).with_name("uv")


def place(content: bytes) -> Path:
    """Return the directory for the programs that are built from `content`, for this Python."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuplane" / "cuda-programs"
    digest = hashlib.sha256(content + sys.version.encode()).hexdigest()[:16]
    return cache / digest


def missing(what: str) -> NoReturn:
    """Skip the test for want of a program."""
    pytest.skip(f"no {what}: make test-kubernetes installs it, or python -m tests.support.cuda_programs")


def runtime() -> Path:
    """NVIDIA's libcudart.so.10.2. Skips the test where it is not installed."""
    found = sorted(place(RUNTIME.encode()).glob("torchvision.libs/libcudart*.so.10.2"))
    if not found:
        missing("CUDA runtime 10.2")
    return found[0]


def numba() -> Path:
    """The Python of an environment with Numba. Skips the test where it is not installed."""
    home = place(LOCK.read_bytes())
    if not (home / ".installed").exists():
        missing("Numba")
    return home / "bin" / "python"


def cupy() -> tuple[Path, dict[str, str]]:
    """The Python of an environment with CuPy, and its variables; LD_LIBRARY_PATH goes before that of the driver.

    Skips the test where it is not installed.
    """
    home = place(CUPY_LOCK.read_bytes())
    if not cupy_libraries.made(home):
        missing("CuPy")
    return home / "bin" / "python", cupy_libraries.variables(home)


def newer_runtime() -> Path:
    """NVIDIA's libcudart.so.12. Skips the test where it is not installed."""
    return next(numba().parents[1].glob("lib/python*/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12"))


def _install(*arguments: object) -> None:
    subprocess.run([_UV, "pip", "install", "--quiet", "--require-hashes", *map(str, arguments)], check=True)


def _environment(lock: Path) -> Path:
    """A virtual environment with what a lock pins, made where it is missing."""
    home = place(lock.read_bytes())
    if not (home / ".installed").exists():
        subprocess.run([_UV, "venv", "--quiet", "--clear", "--python", sys.executable, home], check=True)
        _install("--python", home / "bin" / "python", "--requirement", lock)
        (home / ".installed").touch()
    return home


def install() -> None:
    """Install what is missing. Raises CalledProcessError."""
    _environment(LOCK)
    home = place(RUNTIME.encode())
    if platform.machine() == "x86_64" and not home.exists():
        # Renamed when it is whole.
        fresh, wanted = home.with_suffix(".new"), home.with_suffix(".txt")
        wanted.write_text(RUNTIME)
        of_wheel = ("--python-version", "3.10", "--python-platform", "x86_64-manylinux_2_28", "--only-binary", ":all:")
        _install("--no-deps", "--target", fresh, *of_wheel, "--requirement", wanted)
        fresh.rename(home)
    # Of CuPy for CUDA 10.2 there are wheels for these only.
    if platform.machine() == "x86_64" and sys.version_info < (3, 13) and shutil.which("nm"):
        cupy_libraries.make(_environment(CUPY_LOCK), runtime())


if __name__ == "__main__":
    install()
