"""CUDA C that NVRTC compiles computes the same as NumPy: on a whole GPU and in a share, for two architectures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import cuda_programs

pytestmark = pytest.mark.deadline(300)  # compilers, in a new process
PROGRAM = Path(__file__).with_name("nvrtc_program.py")


# Before sm_80 a copy to shared memory is a load and a store, and there is no cp.async.
@pytest.mark.parametrize("profile", ["1x-t4", "2x-l4"])
@pytest.mark.parametrize("core", [0, 50], ids=["whole GPU", "share"])
def test_kernels_of_cuda_c(make_machine: Callable[..., Any], profile: str, core: int) -> None:
    machine = make_machine(profile)
    variables = machine.share("a", core=core) if core else machine.without_limiter()
    child = machine.execute([cuda_programs.numba(), PROGRAM], variables)
    output, errors = child.communicate(timeout=280)
    assert child.returncode == 0, errors
    *printed, last = output.splitlines()
    assert json.loads(last) == {"wrong": [], "printed": 0, "asserted": 710}
    assert printed == [f"thread {thread} of 12.35% text 1099511627776" for thread in (0, 1)]
    assert "k.cu:7: k: block: [0,0,0], thread: [9,0,0] Assertion `a[I] < 9` failed." in errors
