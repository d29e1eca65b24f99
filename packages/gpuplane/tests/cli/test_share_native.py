"""`gpuplane share run --backend native`: the driver's own memory limits, on a simulated driver that has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuplane.limits.native import unified
from simgpu import PROFILES, create_state

FILL = """
import ctypes, json, subprocess, sys, pynvml
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer, free, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
at = 0
while cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20)) == 0: at += 64
pynvml.nvmlInit()
seen = [total.value >> 20, at, pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total >> 20]
if len(sys.argv) == 1:  # a child of it: nothing is left for one
    seen.append(subprocess.run([sys.executable, __file__, "child"], capture_output=True).returncode)
print(json.dumps(seen))
"""


def share(tmp_path: Path, driver: str, *words: str) -> subprocess.CompletedProcess[str]:
    dev = tmp_path / "dev"
    if not dev.exists():
        dev.mkdir()
        create_state(dev / "nvidiactl", PROFILES["1x-t4"], driver, "native")
        (dev / "nvidia0").touch()
        (tmp_path / "fill.py").write_text(FILL)
    drop = ("LD_LIBRARY_PATH", "GPUPLANE_LIMITS")
    places = {"XDG_RUNTIME_DIR": str(tmp_path), "SIMGPU_DEV": str(dev)}
    environment = {key: value for key, value in os.environ.items() if key not in drop} | places
    command = [sys.executable, "-m", "gpuplane", "share", "run", "--backend", "native", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def groups() -> list[Path]:
    top = unified()
    return list(top.glob("gpuplane-share-*")) if top is not None else []


@pytest.fixture
def root() -> None:
    top = unified()
    if os.geteuid() != 0 or top is None or not os.access(top, os.W_OK):
        pytest.skip("memory limits of cgroups are root's to set, on cgroup v2")


@pytest.mark.usefixtures("root")
def test_the_driver_holds_a_command_and_its_children_together(tmp_path: Path) -> None:
    words = ("--memory", "1GiB", "-o", "json", "--", sys.executable, str(tmp_path / "fill.py"))
    done = share(tmp_path, "615.10.02", *words)
    assert done.returncode == 0, done.stderr
    total, at, nvml, child = json.loads(done.stdout)
    assert (total, nvml, child) == (1024, 1024, 1)
    assert 512 <= at <= 1024
    assert json.loads(done.stderr)["memoryLimitBytes"] == 1 << 30
    assert groups() == []


@pytest.mark.usefixtures("root")
def test_a_driver_without_memory_limits_says_so(tmp_path: Path) -> None:
    done = share(tmp_path, "570.133.20", "--memory", "1GiB", "--", "true")
    assert done.returncode == 125
    assert "native: this driver has no memory limits: 570.133.20" in done.stderr
    assert "--backend interposed" in done.stderr
    assert groups() == []


@pytest.mark.parametrize("words", [("--core", "30"), ("--core", "30", "--memory", "1GiB")])
def test_what_the_driver_cannot_hold_is_refused(tmp_path: Path, words: Sequence[str]) -> None:
    done = share(tmp_path, "615.10.02", *words, "--", "true")
    assert done.returncode == 125
    assert "the driver holds memory only" in done.stderr
