"""The vectorAdd as a process: what it prints, how it ends, and what is made of that."""

from __future__ import annotations

import stat
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from gpuplane.validator import process, vectoradd
from gpuplane.validator.driver_api import CudaDriver
from gpuplane.validator.process import VectorAddProcess, failure
from kubekit.errors import Retryable, Terminal, UsageError


def test_arguments() -> None:
    assert vectoradd.options([]) == ("0", "")
    assert vectoradd.options(["--gpu", "GPU-1"]) == vectoradd.options(["--gpu=GPU-1"]) == ("GPU-1", "")
    assert vectoradd.options(["--library", "/a=b/libcuda.so.1", "--gpu=1"]) == ("1", "/a=b/libcuda.so.1")
    with pytest.raises(UsageError):
        vectoradd.options(["--gpu"])
    done = subprocess.run(
        [sys.executable, "-m", process.PROGRAM, "--gup", "1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "wrong arguments: --gup 1" in done.stderr


def test_the_expected_sums_are_those_of_floats() -> None:
    a, b = vectoradd.inputs()
    values = array("f", a)
    assert 1 <= min(values) < max(values) < 2
    assert len(set(values)) > 20_000, "random"
    assert vectoradd.sums(a, b) == array("f", map(float.__add__, values, array("f", b))).tobytes()


def test_the_first_wrong_element_is_found_by_its_bits() -> None:
    a, b = vectoradd.inputs()
    right = vectoradd.sums(a, b)
    assert vectoradd.first_difference(right, right) is None
    wrong = bytearray(right)
    wrong[4 * 77] ^= 1
    element, got, expected = vectoradd.first_difference(bytes(wrong), right) or (0, 0, 0)
    assert (element, got != expected) == (77, True)


def test_it_imports_next_to_nothing() -> None:
    code = f"import sys; import {process.PROGRAM}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"asyncio", "typing", "re", "msgspec", "random", "argparse", "json", "pynvml", "kubekit.kube"}


async def test_no_driver_is_retryable_and_says_what_to_do(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    library.write_text("no library")
    with pytest.raises(Retryable, match="cannot be loaded") as caught:
        await VectorAddProcess(library)("GPU-0")
    assert (caught.value.where, caught.value.cure) == (str(library), "install the driver's user space again")
    with pytest.raises(Retryable, match="cannot be loaded") as caught:
        CudaDriver(str(tmp_path / "none"))


async def test_a_program_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(Terminal, match=r"did not end within 0\.1 s") as caught:
        await VectorAddProcess(tmp_path, timeout=0.1)("GPU-0")
    assert caught.value.where == "GPU-0"


def test_what_the_program_said_becomes_the_error() -> None:
    error = failure(1, "what   cuInit: CUDA_ERROR_NO_DEVICE (100)\nwhere  GPU-1 (T4)\ncure   nvidia-smi -L\n", "GPU-1")
    assert isinstance(error, Terminal)
    assert (error.what, error.where, error.cure) == (
        "cuInit: CUDA_ERROR_NO_DEVICE (100)",
        "GPU-1 (T4)",
        "nvidia-smi -L",
    )
    assert isinstance(failure(3, "what   x\n", "GPU-1"), Retryable)


def test_a_program_that_died_is_described() -> None:
    assert failure(-11, "", "GPU-1").what == "the vectorAdd was killed by SIGSEGV: it said nothing"
    assert failure(1, "Traceback\nValueError: x\n", "GPU-1").what == "the vectorAdd ended with 1: ValueError: x"
