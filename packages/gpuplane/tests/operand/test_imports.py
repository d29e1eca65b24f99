"""Imports of an operand's process. A node has ten operands, so each loads only the modules that it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Modules of the standard library; each takes 0.6 to 3 MB of memory.
HEAVY = ("shutil", "tempfile", "importlib.resources", "urllib.request", "logging.config")


@pytest.mark.parametrize("operand", ["device_plugin", "driver", "exporter", "toolkit", "validator"])
def test_an_operand_imports_no_heavy_module_before_it_needs_one(operand: str) -> None:
    script = f"import sys, gpuplane.{operand}.operand\nprint(sorted({set(HEAVY)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
