"""The simulated Multi-Process Service: its daemon, its clients' limits, and the exclusive compute mode."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simgpu import layout

ROOT = Path(__file__).resolve().parents[4]
MIB = 1 << 20
EXCLUSIVE_PROCESS = 3
HOLD = "context(); answer(type(allocate(1 << 20)) is int); sys.stdin.readline()"


class Control:
    """The control daemon, and its front end."""

    def __init__(self, program: Path, directory: Path) -> None:
        self.program = program
        self.pipe = directory / ("deep/" * 30) / "pipe"
        self.pipe.parent.mkdir(parents=True)
        self.environment = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(directory / "log")}
        self.daemon = subprocess.Popen([program, "-f"], env=self.environment)
        while self.tell("get_server_list").returncode:
            assert self.daemon.poll() is None
            select.select([], [], [], 0.01)

    def tell(self, *commands: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program], input="\n".join(commands), env=self.environment, capture_output=True, text=True, timeout=20
        )

    def close(self) -> None:
        self.daemon.kill()
        self.daemon.wait()


@pytest.fixture(scope="module")
def program(native: Path) -> Path:
    name = "nvidia-cuda-mps-control"
    subprocess.run([sys.executable, str(ROOT / "native" / "build.py"), name], check=True)
    return native / name


@pytest.fixture
def control(tmp_path: Path, program: Path) -> Iterator[Control]:
    made = Control(program, tmp_path)
    yield made
    made.close()


def write(state: Path, offset: int, data: bytes) -> None:
    with state.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def exclusive(node: Any) -> None:
    offset = layout.StateLayout.gpus.offset + layout.GpuLayout.compute_mode.offset
    write(node.state, offset, EXCLUSIVE_PROCESS.to_bytes(4, "little"))


def test_commands_are_answered_until_quit(control: Control) -> None:
    told = control.tell("set_default_active_thread_percentage 25", "get_default_active_thread_percentage")
    assert told.stdout == "25.0\n25.0\n"
    assert control.tell("set_default_device_pinned_mem_limit 0 2G").stdout == ""
    assert control.tell("get_default_device_pinned_mem_limit 0").stdout == "2048M\n"
    assert control.tell("set_default_active_thread_percentage 0").stdout == "Invalid command\n"
    again = subprocess.run([control.program, "-f"], env=control.environment, capture_output=True, text=True, timeout=20)
    assert (again.returncode, again.stderr) == (1, "An instance of this daemon is already running\n")
    assert (control.pipe / "nvidia-cuda-mps-control.pid").read_text() == f"{control.daemon.pid}\n"
    assert control.tell("quit").returncode == 0
    assert control.daemon.wait(20) == 0
    assert (control.tell("quit").returncode, list(control.pipe.iterdir())) == (1, [])


def test_a_client_is_held_to_the_daemons_limits_and_may_narrow_them(node: Any, control: Control) -> None:
    control.tell("set_default_device_pinned_mem_limit 0 2048M", "set_default_active_thread_percentage 50")
    program = """
    context(); count, at = c_int(), 0
    call("cuDeviceGetAttribute", byref(count), 16, 0)
    while type(allocate(64 << 20)) is not int: at += 64
    answer([count.value, at])
    """
    places = control.environment
    everything = node.run(program, CUDA_MPS_PIPE_DIRECTORY="/nonexistent")
    half = node.run(program, **places)
    assert (everything[0], half[0]) == (40, 20)
    assert everything[1] > 14000
    assert 2048 - 512 <= half[1] <= 2048
    narrower = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"}
    narrow = node.run(program, **places, **narrower)
    assert narrow[0] == 4
    assert 1024 - 512 <= narrow[1] <= 1024
    wider = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "90", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8G"}
    assert node.run(program, **places, **wider) == half


def test_an_exclusive_gpu_is_for_one_process_or_for_clients_of_mps(node: Any, control: Control) -> None:
    exclusive(node)
    opened = 'call("cuInit", 0); answer(code_of("cuCtxCreate_v2", byref(c_void_p()), 0, 0))'
    alone = node.start(HOLD)
    assert alone.stdout.readline() == "false\n"
    assert (node.run(opened), node.run(opened, **control.environment)) == (46, 46)
    alone.communicate("\n", timeout=20)
    client = node.start(HOLD, **control.environment)
    assert client.stdout.readline() == "false\n"
    assert (node.run(opened), node.run(opened, **control.environment)) == (46, 0)
    listed = node.run(
        """
        import pynvml
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        answer([one.pid for one in pynvml.nvmlDeviceGetMPSComputeRunningProcesses(gpu)])
        """
    )
    assert listed == [client.pid]
    assert control.tell("get_client_list").stdout == f"{client.pid}\n"


def test_clients_lose_their_contexts_with_the_daemon(node: Any, control: Control) -> None:
    client = node.start(
        "context(); answer(1); sys.stdin.readline(); answer([allocate(1024), code_of('cuCtxSynchronize')])",
        **control.environment,
    )
    assert client.stdout.readline() == "1\n"
    control.close()
    assert client.communicate("\n", timeout=20)[0] == "[806, 806]\n"


def test_portions_run_side_by_side_and_not_in_turn(node: Any, control: Control) -> None:
    """Two clients with half a GPU each: neither waits for the other's kernel of 200 ms."""
    control.tell("set_default_active_thread_percentage 50")
    spin = """
    import time
    context(); spin = kernel(SPIN, "spin"); answer(1); sys.stdin.readline(); start = time.monotonic()
    launch(spin, 200_000_000); call("cuCtxSynchronize"); answer(time.monotonic() - start)
    """
    both = [node.start(spin, **control.environment) for _ in range(2)]
    for one in both:
        assert one.stdout.readline() == "1\n"
    for one in both:
        one.stdin.write("\n")
        one.stdin.flush()
    assert all(float(one.stdout.readline()) < 0.35 for one in both)


# -- limits of cgroups, as drivers have them from r615 on


def unified() -> Path | None:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return next((Path(line.split()[4]) for line in lines if " - cgroup2 " in line), None)


@pytest.fixture
def cgroup(tmp_path: Path) -> Iterator[Path]:
    top = unified()
    if top is None or not os.access(top, os.W_OK):
        pytest.skip("no cgroup of version 2 can be made here")
    made = top / f"gpuplane-test-{os.getpid()}"
    made.mkdir()
    yield made
    made.rmdir()


LIMITS = """
class Limits(ctypes.Structure):
    _fields_ = [("path", c_char_p), ("soft", c_uint64), ("hard", c_uint64), ("used", c_uint64)]
import pynvml
pynvml.nvmlInit()
nvml = pynvml.nvmlLib
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
def limit(path, hard):
    return nvml.nvmlDeviceSetMemoryLimits_v1(gpu, byref(Limits(path.encode(), 0, hard)))
def limits(path):
    got = Limits(path.encode())
    return [nvml.nvmlDeviceGetMemoryLimits_v1(gpu, byref(got)), got.hard, got.used]
"""
NONE = (1 << 64) - 1


def test_a_driver_before_r615_has_no_memory_limits(node: Any, tmp_path: Path) -> None:
    assert node.run(f"{LIMITS}\nanswer([limit('{tmp_path}', 1 << 30), limits('{tmp_path}')[0]])") == [3, 3]


def test_a_cgroup_is_held_to_its_limit_and_sees_it(node: Any, cgroup: Path) -> None:
    write(node.state, layout.StateLayout.driver_version.offset, b"615.10.02\0")
    if os.geteuid() != 0:
        pytest.skip("limits are root's to set")
    assert node.run(f"{LIMITS}\nanswer([limit('/nonexistent', 1 << 30), limits('{cgroup}')])") == [6, [0, NONE, 0]]
    assert node.run(f"{LIMITS}\nanswer(limit('{cgroup}', 1 << 30))") == 0
    inside = (
        LIMITS
        + f"""
open("{cgroup}/cgroup.procs", "w").write(str(os.getpid()))
context(); at = 0
total = info()[1]
while type(allocate(64 << 20)) is not int: at += 64
answer([total, at, pynvml.nvmlDeviceGetMemoryInfo(gpu).total, limits("{cgroup}"), info()[0]])
open("{cgroup.parent}/cgroup.procs", "w").write(str(os.getpid()))
"""
    )
    total, at, nvml, (code, hard, used), free = node.run(inside)
    assert (total, nvml, code, hard) == (1 << 30, 1 << 30, 0, 1 << 30)
    assert 512 <= at <= 1024
    assert (at * MIB <= used <= hard, free) == (True, hard - used)
    outside = "context(); at = 0\nwhile type(allocate(64 << 20)) is not int: at += 64\nanswer(at)"
    assert node.run(outside) > 14000
    assert node.run(f"{LIMITS}\nanswer([limit('{cgroup}', {NONE}), limits('{cgroup}')])") == [0, [0, NONE, 0]]
