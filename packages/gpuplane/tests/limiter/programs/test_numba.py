"""Numba, unmodified, on the simulated driver: alone and in a share of a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import cuda_programs

pytestmark = pytest.mark.deadline(300)  # compilers, in a new process
GIB = 1 << 30
PROGRAM = Path(__file__).with_name("numba_program.py")


@pytest.mark.parametrize("memory_bytes", [None, 5 * GIB], ids=["whole GPU", "share"])
def test_kernels_compute_what_numpy_computes(machine: Any, memory_bytes: int | None) -> None:
    python = cuda_programs.numba()
    share = machine.share("a", memory_bytes=memory_bytes, core=50) if memory_bytes else None
    child = machine.execute([python, PROGRAM], share or machine.without_limiter())
    printed, line = child.stdout.readline(), child.stdout.readline()
    assert line, child.stderr.read()
    assert printed == "kernel 0 1.500000\n"
    answer = json.loads(line)
    assert answer["wrong"] == []
    assert "OUT_OF_MEMORY" in answer["refused"]
    if memory_bytes:
        assert answer["total"] == memory_bytes
        assert machine.held("a") > 0
        assert machine.store.read("a").totals[0].refused >= 1  # Numba tries again after it has freed what it could
    child.communicate("end\n", timeout=60)
    assert child.returncode == 0
