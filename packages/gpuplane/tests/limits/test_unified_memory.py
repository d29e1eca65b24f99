"""Shares of a GPU that uses the machine's memory, of which NVML says nothing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpuplane.hardware import GPUSource, open_gpus
from gpuplane.limits import Agent, GpuLimit, Limits, Owner, find_real
from gpuplane.limits.injection import LIBRARIES, command, link
from simgpu import NATIVE, Faults
from tests.support.limits_examples import GIB

ROOT = Path(__file__).resolve().parents[4]


def test_the_gpu_is_counted_and_its_limit_of_memory_holds(machine: Any) -> None:
    wanted = [f"limiter/{name}" for name in LIBRARIES]
    subprocess.run([sys.executable, str(ROOT / "native" / "build.py"), *wanted], check=True)
    with Faults(machine.dev / "nvidiactl") as faults:
        faults.unified_memory(0)
    with contextlib.closing(open_gpus(machine.dev.parent)) as gpus:
        _try_share(machine, gpus)


def _try_share(machine: Any, gpus: GPUSource) -> None:
    [gpu] = gpus.inventory()
    assert gpu.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = Limits((GpuLimit(uuid=gpu.uuid, core=20, memory_bytes=2 * GIB),))
    directory = machine.store.write("x", limits, Owner(name="ml/x:main"))
    link(directory, find_real({}, first=(NATIVE,), cache=""))
    machine.start(
        """
context()
assert cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(3 << 30)) == 2
allocate(1 << 30)
free, total = c_size_t(), c_size_t()
call("cuMemGetInfo_v2", byref(free), byref(total))
assert total.value == 2 << 30 and free.value <= 1 << 30, (free.value, total.value)
ready()
""",
        **command(directory, limits, {}),
    )
    reported: list[object] = []
    agent = Agent(machine.store, gpus, on_escape=lambda *what: reported.append(what))
    for _ in range(2):
        agent.step()
    [view] = agent.views()
    assert reported == [] and [row.name for row in view.shares] == ["ml/x:main"]
    assert machine.store.read("x").slots[0].gpus[0].other_bytes > 0  # the context, by NVML's list of processes
