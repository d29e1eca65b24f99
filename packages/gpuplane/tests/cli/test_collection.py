"""Garbage collection around the answer of a command."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from gpuplane.cli.main import main


@pytest.mark.parametrize("command", [("status",), ("explain", "tune")])
def test_a_command_that_fails_leaves_it_on(command: tuple[str, ...]) -> None:
    assert main([*command, "--kubeconfig", "/nonexistent"]) == 3
    assert gc.isenabled()


ANSWER = """
from gpuplane.cli.collection import end_process, without_collection

with without_collection():
    print("x" * 1_000_000)
end_process(3)
"""


def test_the_process_ends_with_the_whole_answer_and_its_code() -> None:
    done = subprocess.run([sys.executable, "-c", ANSWER], capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stdout), done.stderr) == (3, 1_000_001, "")
