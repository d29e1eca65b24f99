"""PyTorch, unmodified, on the simulated driver: its allocator in shares of a GPU. `make test-pytorch` installs it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.hardware import GPUSource, open_gpus
from gpuplane.limits import Agent
from simgpu import NATIVE
from tests.support import pytorch

pytestmark = pytest.mark.deadline(300)  # gigabytes of libraries are read first
MIB, GIB = 1 << 20, 1 << 30
SHARE = 5 * GIB
PROGRAM = Path(__file__).with_name("pytorch_program.py")


class Program:
    """A process of PyTorch that does one step after the other."""

    def __init__(self, machine: Any, driver: dict[str, str]) -> None:
        python, needs = pytorch.pytorch()
        libraries = f"{driver['LD_LIBRARY_PATH']}:{needs['LD_LIBRARY_PATH']}"
        variables = driver | needs | {"LD_LIBRARY_PATH": libraries}
        self.child: subprocess.Popen[str] = machine.execute([python, "-W", "ignore", PROGRAM], variables)

    def __call__(self, step: str) -> dict[str, Any]:
        assert self.child.stdin and self.child.stdout and self.child.stderr
        self.child.stdin.write(f"{step}\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        assert line, self.child.stderr.read()
        answer: dict[str, Any] = json.loads(line)
        return answer


@pytest.fixture
def nvml(machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GPUSource]:
    """NVML as the node has it, without the limiter."""
    libraries = tmp_path / "host/usr/lib64"
    libraries.mkdir(parents=True)
    (libraries / "libnvidia-ml.so.1").symlink_to(NATIVE / "libnvidia-ml.so.1")
    monkeypatch.setenv("SIMGPU_DEV", str(machine.dev))
    gpus = open_gpus(tmp_path / "host")
    yield gpus
    gpus.close()


def on_gpu(machine: Any, nvml: GPUSource) -> dict[int, int]:
    """The bytes of each process, as NVML has them."""
    return {one.pid: one.memory_bytes or 0 for one in nvml.processes(machine.uuids[0])}


def in_books(machine: Any) -> dict[int, int]:
    return {slot.host_pid: slot.gpus[0].memory_bytes for slot in machine.store.read("a").slots}


@pytest.mark.parametrize("memory_bytes", [0, SHARE], ids=["whole GPU", "share"])
def test_tensors_hold_what_the_cpu_computes(machine: Any, memory_bytes: int) -> None:
    driver = machine.share("a", memory_bytes=memory_bytes, core=50) if memory_bytes else machine.without_limiter()
    program = Program(machine, driver)
    found = program("tensors")
    assert (found["available"], found["devices"], found["wrong"]) == (True, 1, [])
    # Kernels that its wheel has in machine code only are refused as on a GPU that the wheel has none for.
    assert "no kernel image is available for execution on the device" in found["machine code"]
    if memory_bytes:
        assert program("books")["total"] == memory_bytes
        assert machine.store.read("a").totals[0].launches >= 1


def test_the_allocator_fills_the_share_and_gets_its_own_error_at_the_limit(machine: Any, nvml: GPUSource) -> None:
    program = Program(machine, machine.share("a", memory_bytes=SHARE))
    program("tensors")
    agent = Agent(machine.store, nvml)
    agent.step()  # the context's cost is measured
    found = program("fill")
    agent.step()
    assert found["error"].startswith("CUDA out of memory. Tried to allocate 64.00 MiB (GPU 0; 5.00 GiB total capacity;")
    assert (found["ooms"], found["retries"]) == (1, 1)
    assert machine.store.read("a").totals[0].refused >= 1
    pid = program.child.pid
    seen, booked = on_gpu(machine, nvml)[pid], in_books(machine)[pid]
    assert seen == booked == SHARE - found["free"] <= SHARE
    assert found["free"] < 10 * MIB, "the rest is less than the allocator asks for at once"
    [use] = machine.store.read("a").slots[0].gpus
    assert use.held_bytes == found["reserved"]

    assert program("forget")["free"] == found["free"]
    emptied = program("empty_cache")
    assert emptied["free"] - found["free"] == found["reserved"] - emptied["reserved"] > 4 * GIB
    assert on_gpu(machine, nvml)[pid] == SHARE - emptied["free"]
    again = program("hold")
    assert (again["error"], again["allocated"] - emptied["allocated"]) == ("", 3 * GIB)


def test_what_one_process_caches_another_lacks_until_the_cache_is_emptied(machine: Any, nvml: GPUSource) -> None:
    share = machine.share("a", memory_bytes=SHARE)
    first, second = Program(machine, share), Program(machine, share)
    assert first("hold")["error"] == ""
    cached = first("forget")
    assert (cached["allocated"], cached["reserved"]) == (0, 3 * GIB)
    assert second("hold")["error"].startswith("CUDA out of memory.")
    first("empty_cache")
    assert second("hold")["error"] == ""
    agent = Agent(machine.store, nvml)
    agent.step()
    seen = on_gpu(machine, nvml)
    assert seen == in_books(machine) and set(seen) == {first.child.pid, second.child.pid}
    assert sum(seen.values()) == SHARE - second("books")["free"] <= SHARE
    assert second("hold")["error"].startswith("CUDA out of memory.")
