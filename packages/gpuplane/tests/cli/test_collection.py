"""Garbage collection around the answer of a command."""

from __future__ import annotations

import gc

import pytest

from gpuplane.cli.main import main


@pytest.mark.parametrize("command", [("status",), ("explain", "tune")])
def test_a_command_that_fails_leaves_it_on(command: tuple[str, ...]) -> None:
    assert main([*command, "--kubeconfig", "/nonexistent"]) == 3
    assert gc.isenabled()
