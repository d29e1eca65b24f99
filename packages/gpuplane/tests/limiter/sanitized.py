"""C programs that are compiled together with the limiter's own sources and sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SANITIZERS = ("address,undefined", "thread")
LIMITER = Path(__file__).resolve().parents[4] / "packages/gpuplane/native/limiter"


def compiled(name: str, sanitizer: str, folder: Path) -> Path:
    """Compile `name`.c of this folder; skip the test where the compiler has no such sanitizer."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no compiler with sanitizers: gcc or clang")
    sources = [Path(__file__).with_name(f"{name}.c"), *LIMITER.glob("*.c"), *LIMITER.glob("cuda/*.c")]
    flags = ["-std=c11", "-O0", "-g", "-w", "-D_GNU_SOURCE", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    built = subprocess.run(
        [compiler, *flags, *sources, "-o", folder / name, "-lpthread", "-ldl"], capture_output=True, text=True
    )
    if "cannot find" in built.stderr or "unrecognized" in built.stderr:
        pytest.skip(f"the compiler has no {sanitizer} sanitizer")
    assert built.returncode == 0, built.stderr
    return folder / name


def run(machine: Any, share: dict[str, str], program: Path, *words: str) -> str:
    """Run a program in a share; returns its output. It fails the test by its exit code or by a word on stderr."""
    environment = os.environ | share | {"SIMGPU_DEV": str(machine.dev), "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([program, *words], env=environment, capture_output=True, text=True, timeout=110)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
