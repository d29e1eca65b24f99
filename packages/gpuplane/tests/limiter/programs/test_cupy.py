"""CuPy, unmodified, on the simulated driver: alone and in a share of a GPU. See tests/support/cupy_libraries.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import cuda_programs

pytestmark = pytest.mark.deadline(300)  # compilers, in a new process
GIB = 1 << 30
PROGRAM = Path(__file__).with_name("cupy_program.py")


@pytest.mark.parametrize("memory_bytes", [0, 5 * GIB], ids=["whole GPU", "share"])
def test_arrays_hold_what_numpy_computes(machine: Any, tmp_path: Path, memory_bytes: int) -> None:
    python, needs = cuda_programs.cupy()
    driver = machine.share("a", memory_bytes=memory_bytes, core=50) if memory_bytes else machine.without_limiter()
    libraries = f"{needs['LD_LIBRARY_PATH']}:{driver['LD_LIBRARY_PATH']}"
    child = machine.execute(
        [python, "-W", "ignore", PROGRAM],
        driver | needs | {"LD_LIBRARY_PATH": libraries, "CUPY_CACHE_DIR": str(tmp_path / "kernels")},
    )
    line = child.stdout.readline()
    assert line, child.stderr.read()
    answer = json.loads(line)
    assert answer["wrong"] == []
    assert "Out of memory" in answer["refused"]
    if memory_bytes:
        assert answer["total"] == memory_bytes
        assert machine.held("a") > 0
        assert machine.store.read("a").totals[0].refused >= 1
    _, errors = child.communicate("end\n", timeout=60)
    assert child.returncode == 0, errors
