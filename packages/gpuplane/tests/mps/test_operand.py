"""The MPS operand on a simulated machine: the driver's own control daemon, the GPUs' compute modes, `.ready`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuplane import mps, names
from gpuplane.hardware import GPUSource, open_gpus
from gpuplane.hardware.compute_mode import compute_mode, set_compute_mode
from gpuplane.host import Command, Completed, Host, SystemRunner
from gpuplane.operand import OperandContext
from gpuplane.sharing.mps import FAILED, READY
from kubekit.api.core import Node
from kubekit.api.meta import ObjectMeta
from kubekit.kube import EventType, ListPage, WatchEvent
from simgpu import NATIVE, PROFILES, create_state

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = "nvidia-cuda-mps-control"
MPS = "run/nvidia/mps"
SHARED = "version: v1\nsharing: {{mps: {{resources: [{{name: nvidia.com/gpu, replicas: {}}}]}}}}\n"
EXCLUSIVE, DEFAULT, PROHIBITED = 3, 0, 2


class Client:
    """The API server as far as an operand looks at its own Node."""

    async def pages(self, kind: type, *where: Any, bad: object) -> AsyncIterator[ListPage]:
        assert (kind, where[2]) == (Node, "metadata.name=n1")
        yield ListPage([Node(metadata=ObjectMeta(name="n1", uid="n", resource_version="1"))], "1", "")

    async def watch(self, *arguments: Any, **more: Any) -> AsyncIterator[WatchEvent[Node]]:
        await asyncio.Event().wait()
        yield WatchEvent(EventType.DELETED, Node(), "")


class Programs(SystemRunner):
    """The programs of the root, started without changing root; `broken` answers instead of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.broken = ""

    async def run(self, command: Command) -> Completed:
        if self.broken:
            return Completed(command, 127, stderr=self.broken)
        assert command.root == self.root
        program = str(self.root / "usr/bin" / command.argv[0])
        env = {**command.env, "SIMHOST_ROOT": str(self.root)}
        return await super().run(Command((program, *command.argv[1:]), None, command.timeout, env, command.stdin))


class Machine:
    """A root with one simulated GPU and its driver's MPS."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("dev", "usr/bin", "usr/lib/x86_64-linux-gnu"):
            (root / folder).mkdir(parents=True)
        create_state(root / "dev/nvidiactl", PROFILES["1x-t4"], "570.133.20", "mps")
        (root / "dev/nvidia0").touch()
        (root / names.CUDA_READY).parent.mkdir(parents=True)
        (root / names.CUDA_READY).touch()
        (root / "usr/bin" / PROGRAM).symlink_to(NATIVE / PROGRAM)
        (root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").symlink_to(NATIVE / "libnvidia-ml.so.1")
        self.config = root / "config.yaml"
        self.host = Host(root)
        self.programs = Programs(root)

    def open(self) -> GPUSource:
        os.environ["SIMGPU_DEV"] = str(self.root / "dev")
        return open_gpus(self.root)

    def mode(self) -> int | None:
        source = self.open()
        try:
            return compute_mode(source.inventory()[0].uuid)
        finally:
            source.close()

    def tell(self, command: str) -> str:
        pipe = f"/{MPS}/nvidia.com/gpu/pipe"
        env = {"CUDA_MPS_PIPE_DIRECTORY": pipe, "SIMHOST_ROOT": str(self.root)}
        program = self.root / "usr/bin" / PROGRAM
        return subprocess.run([program], input=command, env=env, capture_output=True, text=True, timeout=20).stdout

    def daemon(self) -> int:
        return int((self.root / MPS / "nvidia.com/gpu/pipe/nvidia-cuda-mps-control.pid").read_text())

    async def ready(self, *, other_than: bytes = b"") -> bytes:
        async with asyncio.timeout(60):
            async for _ in self.host.watch(f"{MPS}/{READY}"):
                text = self.host.read(f"{MPS}/{READY}")
                if text is not None and text != other_than:
                    return text
        raise AssertionError("a watch never ends")

    async def gone(self) -> None:
        async with asyncio.timeout(60):
            async for _ in self.host.watch(f"{MPS}/{READY}"):
                if not self.host.exists(f"{MPS}/{READY}"):
                    return

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        context: Any = OperandContext(
            node_name="n1",
            namespace="gpu-operator",
            client=Client(),  # type: ignore[arg-type]
            now=lambda: "2026-01-01T00:00:00Z",
            host_root=self.root,
            config=self.config,
            open_gpus=self.open,
            open_host=lambda root: Host(root, self.programs),
            sleep=asyncio.sleep,
            environment={},
        )
        task = asyncio.create_task(mps.run(context))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    words = [sys.executable, str(ROOT / "native" / "build.py"), PROGRAM, "libnvidia-ml.so.1"]
    subprocess.run(words, check=True)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("SIMGPU_DEV", "")
    monkeypatch.setattr("gpuplane.mps.node.mount_shm", lambda *places: None)
    yield Machine(tmp_path / "root")


async def test_daemons_follow_the_configuration_and_leave_nothing(machine: Machine) -> None:
    machine.config.write_text("version: v1\n")
    async with machine.running():
        machine.config.write_text(SHARED.format(4))
        first = await machine.ready()
        assert machine.mode() == EXCLUSIVE
        assert machine.tell("get_default_active_thread_percentage") == "25.0\n"
        assert machine.tell("get_default_device_pinned_mem_limit 0") == f"{15360 // 4}M\n"
        machine.config.write_text(SHARED.format(2))
        assert await machine.ready(other_than=first)
        assert machine.tell("get_default_active_thread_percentage") == "50.0\n"
        machine.config.write_text("version: v1\n")
        await machine.gone()
    assert (machine.mode(), machine.tell("quit")) == (DEFAULT, "")
    assert {path.name for path in (machine.root / MPS).glob(".*")} == set()


async def test_the_gpu_is_left_to_the_validator_until_it_has_proved_cuda(machine: Machine) -> None:
    (machine.root / names.CUDA_READY).unlink()
    machine.config.write_text(SHARED.format(2))
    async with machine.running():
        await asyncio.to_thread(machine.tell, "get_server_list")
        assert (machine.mode(), machine.host.exists(f"{MPS}/{READY}")) == (DEFAULT, False)
        (machine.root / names.CUDA_READY).touch()
        await machine.ready()
        assert machine.mode() == EXCLUSIVE


async def test_a_daemon_that_is_killed_is_started_again(machine: Machine) -> None:
    machine.config.write_text(SHARED.format(2))
    async with machine.running():
        await machine.ready()
        first = machine.daemon()
        os.kill(first, signal.SIGKILL)
        await machine.gone()
        await machine.ready()
        assert machine.daemon() != first
        assert machine.mode() == EXCLUSIVE
    assert machine.mode() == DEFAULT


async def test_modes_are_restored_by_whoever_comes_after_one_that_was_killed(machine: Machine) -> None:
    source = machine.open()
    uuid = source.inventory()[0].uuid
    assert set_compute_mode(uuid, EXCLUSIVE)  # by the one before, which wrote down what it found
    source.close()
    machine.host.write_atomic(f"{MPS}/.compute-modes", f'{{"{uuid}": {PROHIBITED}}}'.encode())
    machine.config.write_text(SHARED.format(2))
    async with machine.running():
        await machine.ready()
    assert machine.mode() == PROHIBITED


async def test_why_there_is_no_daemon_is_said_where_the_plugin_finds_it(machine: Machine) -> None:
    machine.programs.broken = "no such file"
    machine.config.write_text(SHARED.format(2))
    async with machine.running() as task:
        async with asyncio.timeout(60):
            said = await machine.host.wait_for(f"{MPS}/{FAILED}")
        assert said == f"the driver has no {PROGRAM}".encode()
        machine.programs.broken = ""
        await machine.ready()
        assert not machine.host.exists(f"{MPS}/{FAILED}")
        machine.config.write_text(SHARED.format(100))
        async with asyncio.timeout(60):
            assert b"room for 48 clients" in await machine.host.wait_for(f"{MPS}/{FAILED}")
        assert not task.done()
