"""Broken GPUs as programs meet them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest


def vector_add(node: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuplane.validator.vectoradd"],
        env=os.environ | node.environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "spoil",
    [
        lambda faults: faults.wrong_results(0),
        lambda faults: faults.wrong_results(0, idle=True),
        lambda faults: faults.off_bus(0),
    ],
    ids=["wrong results", "does nothing", "off the bus"],
)
def test_vector_add_notices_and_passes_again_once_it_is_mended(node: Any, spoil: Callable[[Any], None]) -> None:
    assert "Test PASSED" in vector_add(node).stdout
    with node.faults() as faults:
        spoil(faults)
        assert "Test FAILED" in vector_add(node).stdout
        faults.clear(0)
    assert "Test PASSED" in vector_add(node).stdout


@pytest.mark.parametrize(("fault", "code"), [("off_bus", 999), ("ecc", 214)])
def test_a_running_program_gets_an_error_and_goes_on_after_recovery(node: Any, fault: str, code: int) -> None:
    program = node.start(
        """
        handle = context(); answer(type(allocate(1024)) is int); sys.stdin.readline()
        failed = [allocate(1024), code_of("cuCtxSynchronize"), code_of("cuCtxDestroy_v2", handle)]
        answer(failed); sys.stdin.readline()
        context(); answer(type(allocate(1024)) is int)
        """
    )
    assert program.stdout.readline() == "false\n"
    with node.faults() as faults:
        if fault == "ecc":
            faults.ecc(0, uncorrected=1)
        else:
            faults.off_bus(0)
        program.stdin.write("go\n")
        program.stdin.flush()
        assert program.stdout.readline() == f"[{code}, {code}, {code}]\n"
        faults.clear(0)
    program.stdin.write("go\n")
    program.stdin.flush()
    assert program.stdout.readline() == "false\n"


def test_one_broken_gpu_leaves_the_others_alone(make_node: Callable[..., Any]) -> None:
    node = make_node("4x-a10g")
    with node.faults() as faults:
        faults.off_bus(1)
        faults.wrong_results(2)
    assert node.run(
        """
        call("cuInit", 0)
        results = []
        for ordinal in range(4):
            handle = c_void_p()
            results.append(code_of("cuCtxCreate_v2", byref(handle), 0, ordinal))
        answer(results)
        """
    ) == [0, 46, 0, 0]
