"""Random calls with wrong arguments from several threads, under sanitizers: no crash, no race, no byte too many."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
LIMITER = ROOT / "packages/gpuplane/native/limiter"
MIB = 1 << 20


@pytest.fixture(scope="module", params=["address,undefined", "thread"])
def fuzzer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The limiter's own sources with the program that calls them, compiled with sanitizers."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no compiler with sanitizers: gcc or clang")
    program = tmp_path_factory.mktemp("fuzz") / "fuzz"
    sources = [Path(__file__).with_name("fuzz.c"), *LIMITER.glob("*.c"), *LIMITER.glob("cuda/*.c")]
    flags = ["-std=c11", "-O0", "-g", "-w", "-D_GNU_SOURCE", f"-fsanitize={request.param}", "-fno-sanitize-recover=all"]
    built = subprocess.run(
        [compiler, *flags, *sources, "-o", program, "-lpthread", "-ldl"], capture_output=True, text=True
    )
    if "cannot find" in built.stderr or "unrecognized" in built.stderr:
        pytest.skip(f"the compiler has no {request.param} sanitizer")
    assert built.returncode == 0, built.stderr
    return program


@pytest.mark.parametrize("seed", [1, 2])
def test_random_calls_break_nothing(machine, fuzzer: Path, seed: int) -> None:
    share = machine.share("fuzz", memory_bytes=48 * MIB, context_bytes=MIB, core=100)
    environment = os.environ | share | {"SIMGPU_DEV": str(machine.dev), "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([fuzzer, str(seed), "4000"], env=environment, capture_output=True, text=True, timeout=110)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "0\n"  # everything was given back, and the ledger says so
