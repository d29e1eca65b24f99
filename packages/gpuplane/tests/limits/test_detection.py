"""A process that goes round its limits is reported within two looks of the agent, which looks once a second."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplane.limits import Agent, Escape, GpuLimit, Limits, Owner, Share, find_real
from gpuplane.limits import page as pages
from gpuplane.limits.breach import EscapeKind
from gpuplane.limits.injection import LIBRARIES, command, link
from simgpu import NATIVE, Faults
from tests.support.limits_examples import GIB

ROOT = Path(__file__).resolve().parents[4]
LAUNCHES = """
import time
real = ctypes.CDLL({real!r})
ptx = b'.version 7.0 .target sm_35 .address_size 64 .visible .entry k() {{ .pragma "simgpu.time_ns 1000000"; ret; }}'
module, function = c_void_p(), c_void_p()
call("cuModuleLoadData", byref(module), ptx)
call("cuModuleGetFunction", byref(function), module, b"k")
def work(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert real.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
        real.cuCtxSynchronize()
"""


class Watched:
    """A share of 5 GiB and 20 percent, and an agent with what it reported."""

    def __init__(self, machine: Any) -> None:
        self.machine, self.store = machine, machine.store
        limits = Limits((GpuLimit(uuid=machine.gpu.uuid, core=20, memory_bytes=5 * GIB),))
        self.directory = self.store.write("x", limits, Owner(name="ml/x:main"))
        link(self.directory, find_real({}, first=(NATIVE,), cache=""))
        self.environment = command(self.directory, limits, {})
        self.reported: list[tuple[int, str, EscapeKind]] = []
        self.tampered: list[str] = []
        self.agent = Agent(
            self.store, machine.gpus, on_escape=self._tell, on_tamper=lambda share: self.tampered.append(share.id)
        )

    def _tell(self, escape: Escape, share: Share | None) -> None:
        self.reported.append((escape.pid, share.id if share else "", escape.kind))

    def start(self, program: str, **more: str) -> subprocess.Popen[str]:
        child: subprocess.Popen[str] = self.machine.start(program, **self.environment | more)
        return child

    def poke(self, offset: int, value: int) -> None:
        with (self.directory / "usage").open("r+b") as file:
            os.pwrite(file.fileno(), value.to_bytes(8, "little"), pages.UsagePage.slots.offset + offset)


@pytest.fixture
def watched(machine: Any) -> Watched:
    wanted = [f"limiter/{name}" for name in LIBRARIES]
    subprocess.run([sys.executable, str(ROOT / "native" / "build.py"), *wanted], check=True)
    return Watched(machine)


def test_who_keeps_to_its_limits_is_never_reported(watched: Watched) -> None:
    watched.start("context(); allocate(4 << 30); ready()")
    for _ in range(3):
        watched.agent.step()
    assert watched.reported == [] and watched.tampered == []


def test_memory_by_the_real_library_is_seen(watched: Watched) -> None:
    child = watched.start(
        f"context(); real = ctypes.CDLL({str(NATIVE / 'libcuda.so.1')!r})\n"
        "assert real.cuMemAlloc_v2(byref(c_uint64()), c_size_t(7 << 30)) == 0; ready()"
    )
    watched.agent.step()
    assert watched.reported == [(child.pid, "x", EscapeKind.MEMORY)]


def test_time_by_the_real_library_is_seen(watched: Watched) -> None:
    child = watched.start(
        "context()" + LAUNCHES.format(real=str(NATIVE / "libcuda.so.1")) + "work(1)\nready()\nwork(1)\nready()"
    )
    watched.agent.step()
    child.stdin.write("go\n")  # type: ignore[union-attr]
    child.stdin.flush()  # type: ignore[union-attr]
    assert child.stdout.readline() == "ready\n"  # type: ignore[union-attr]
    watched.agent.step()
    assert watched.reported == [(child.pid, "x", EscapeKind.TIME)]


OUTSIDE = {
    "another search path": {"LD_LIBRARY_PATH": str(NATIVE)},
    "emptied variables": {"LD_LIBRARY_PATH": str(NATIVE), "GPUPLANE_LIMITS": ""},
    "no limits allowed": {"GPUPLANE_LIMITS": "/nowhere", "GPUPLANE_LIMITS_MISSING": "open"},
}


@pytest.mark.parametrize("way", OUTSIDE)
def test_who_is_in_no_books_is_seen_at_the_first_look_however_short_it_lives(watched: Watched, way: str) -> None:
    known = "x" if way == "another search path" else ""
    expected = []
    for _ in range(2):
        child = watched.start("context(); allocate(1 << 30); ready()", **OUTSIDE[way])
        watched.agent.step()
        child.communicate("\n")
        expected.append((child.pid, known, EscapeKind.OUTSIDE))
    assert watched.reported == expected


@pytest.mark.parametrize(
    ("what", "reported"),
    [
        pytest.param(lambda watched: watched.poke(0, 0), True, id="its own slot cleared"),
        pytest.param(lambda watched: watched.poke(0, 4711), True, id="its slot given to another"),
        pytest.param(lambda watched: watched.poke(pages.UsageSlot.gpus.offset, 0), False, id="less held"),
    ],
)
def test_falsified_books_do_not_hide_what_nvml_sees(
    watched: Watched, what: Callable[[Watched], None], reported: bool
) -> None:
    child = watched.start("context(); allocate(4 << 30); ready()")
    what(watched)
    watched.agent.step()
    assert watched.reported == ([(child.pid, "x", EscapeKind.OUTSIDE)] if reported else [])
    [seen] = watched.machine.gpus.processes(watched.machine.gpu.uuid)
    if not reported:
        assert watched.store.read("x").slots[0].gpus[0].memory_bytes == seen.memory_bytes


@pytest.mark.parametrize("file", ["limits", "usage"])
def test_a_rewritten_page_is_restored_and_reported(watched: Watched, file: str) -> None:
    path = watched.directory / file
    before = path.read_bytes()
    path.write_bytes(b"x" * 100 + before[100:])
    watched.agent.step()
    assert watched.tampered == ["x"] and path.stat().st_size == len(before)
    if file == "limits":
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("load", "kinds"),
    [
        pytest.param({"draws": True}, [EscapeKind.DRAWING], id="Vulkan or OpenGL"),
        pytest.param({"decoder_percent": 40}, [EscapeKind.VIDEO], id="decoder"),
        pytest.param({"encoder_percent": 7}, [EscapeKind.VIDEO], id="encoder"),
        pytest.param({}, [], id="CUDA alone"),
    ],
)
def test_a_process_in_the_books_that_uses_the_gpu_outside_cuda_is_reported_and_goes_on(
    watched: Watched, load: dict[str, int], kinds: list[EscapeKind]
) -> None:
    child = watched.start("context(); ready()")
    watched.agent = Agent(watched.store, watched.machine.gpus, on_escape=watched._tell, stop=True)
    with Faults(watched.machine.dev / "nvidiactl") as faults:
        faults.busy(0, 10, pid=child.pid, memory_bytes=0, **load)
        for _ in range(2):
            watched.agent.step()
        faults.busy(0, 0)
    assert watched.reported == [(child.pid, "x", kind) for kind in kinds]
    assert child.poll() is None


@pytest.mark.parametrize("draws", [pytest.param(True, id="Vulkan"), pytest.param(False, id="OpenCL")])
def test_a_process_in_a_share_that_uses_the_gpu_without_cuda_is_reported(watched: Watched, draws: bool) -> None:
    child = watched.start("ready()")
    with Faults(watched.machine.dev / "nvidiactl") as faults:
        faults.busy(0, 10, pid=child.pid, memory_bytes=GIB, draws=draws)
        watched.agent.step()
        [seen] = watched.machine.gpus.processes(watched.machine.gpu.uuid)
        faults.busy(0, 0)
    assert watched.reported == [(child.pid, "x", EscapeKind.OUTSIDE)]
    assert (seen.draws, seen.memory_bytes) == (draws, GIB)
