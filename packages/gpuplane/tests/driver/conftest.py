"""Hosts with and without drivers, host tools that behave and misbehave, and a GPUNode that records its writes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuplane.api.gpunode import GPUNode
from gpuplane.cures import of_nvml
from gpuplane.hardware import GPUFacts
from gpuplane.host import Command, Completed, Host
from gpuplane.operand import OperandContext
from kubekit.errors import Retryable, Terminal
from packages.gpuplane.tests.driver.machine import Machine
from tests.support.fake_gpus import FakeGPUs
from tests.support.fake_node_client import FakeNodeClient

VERSION = "535.161.08"
KERNEL = "5.15.0-1051-aws"


class Kernel:
    """modprobe and rmmod on a root of files, as far as the driver is concerned; `broken` answers instead when set."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.broken: dict[str, Completed] = {}
        self.ran: list[str] = []
        self.holders = 0
        self.before: Callable[[str], None] = lambda _: None

    async def run(self, command: Command) -> Completed:
        text = str(command)
        self.ran.append(text)
        self.before(text)
        tool, *modules = (word for word in command.argv if word != "-a")
        if tool in self.broken:
            return msgspec.structs.replace(self.broken[tool], command=command)
        answers = [self.one(command, tool, module) for module in modules]
        return max(answers, key=lambda answer: answer.code)

    def one(self, command: Command, tool: str, module: str) -> Completed:
        name = module.replace("-", "_")
        loaded = self._loaded()
        if tool == "modprobe":
            found = next((self.root / "lib/modules" / KERNEL).rglob(f"{module}.ko"), None)
            if found is None:
                return Completed(command, 1, stderr=f"modprobe: FATAL: Module {module} not found")
            loaded.setdefault(name, None)
            if name == "nvidia":
                version = found.read_text().split("version=")[1].split("\n")[0]
                self._write("sys/module/nvidia/version", version + "\n")
                self._write("proc/driver/nvidia/version", f"NVRM version: NVIDIA Kernel Module  {version}  x\n")
        elif name in loaded:
            if name == "nvidia" and self.holders:
                return Completed(command, 1, stderr="rmmod: ERROR: Module nvidia is in use")
            del loaded[name]
            if name == "nvidia":
                for path in ("sys/module/nvidia/version", "proc/driver/nvidia/version"):
                    (self.root / path).unlink()
                for path in ("sys/module/nvidia", "proc/driver/nvidia", "proc/driver"):
                    (self.root / path).rmdir()
        self._write("proc/modules", "".join(self._line(m, loaded) for m in loaded))
        return Completed(command, 0)

    def _line(self, module: str, loaded: dict[str, None]) -> str:
        """As proc(5): size, references, and the modules among them."""
        dependents = [m for m in loaded if m != "nvidia"] if module == "nvidia" else []
        users = "".join(f"{m}," for m in dependents) or "-"
        return f"{module} 1 {len(dependents) + (self.holders if module == 'nvidia' else 0)} {users} Live 0x0\n"

    def hold(self, holders: int) -> None:
        """Let so many processes hold the driver."""
        self.holders = holders
        loaded = self._loaded()
        self._write("proc/modules", "".join(self._line(m, loaded) for m in loaded))

    def _loaded(self) -> dict[str, None]:
        path = self.root / "proc/modules"
        return dict.fromkeys(line.split()[0] for line in path.read_text().splitlines())

    def _write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)


class World:
    def __init__(self, root: Path, kernel: Any = None) -> None:
        self.root = root
        self.kernel = kernel or Kernel(root)
        self.host = Host(root, self.kernel)
        self.client = FakeNodeClient(fails=GPUNode)
        self.answering = 2
        self.pauses: list[float] = []
        self.between: list[Callable[[], None]] = []

    def write(self, path: str, data: str | bytes) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(data.encode() if isinstance(data, str) else data)

    def preinstall(self) -> None:
        self.write("usr/lib64/libnvidia-ml.so.1", "theirs")
        self.write(f"lib/modules/{KERNEL}/updates/nvidia.ko", f"version={VERSION}\n")
        for module in ("nvidia-uvm", "nvidia-modeset"):
            self.write(f"lib/modules/{KERNEL}/updates/{module}.ko", "")

    def open_gpus(self) -> Any:
        if not self.host.exists("sys/module/nvidia"):
            raise Retryable("the driver is not loaded", where="NVML", cure="modprobe nvidia")
        module = (self.host.read_text("sys/module/nvidia/version") or "").strip()
        library = self.host.read_text("usr/lib64/libnvidia-ml.so.1") or ""
        if library[:1].isdigit() and library != module:
            raise Terminal("Driver/library version mismatch", where="NVML", cure=of_nvml(18))
        gpus = tuple(
            GPUFacts(
                index=i,
                minor=i,
                uuid=f"GPU-{i}",
                model="Tesla T4",
                memory_bytes=15360 << 20,
                pci=f"0000:00:1{i}.0",
                compute=(7, 5),
            )
            for i in range(self.answering)
        )
        return FakeGPUs(gpus, module)

    def context(self, **changes: Any) -> OperandContext:
        async def sleep(seconds: float) -> None:
            self.pauses.append(seconds)
            if self.between:
                self.between.pop(0)()
            elif len(self.pauses) > 50:
                raise asyncio.CancelledError
            await asyncio.sleep(0)

        return OperandContext(
            node_name="n",
            namespace="gpu-operator",
            client=self.client,  # type: ignore[arg-type]  # the part of it that is used
            now=lambda: "2026-11-20T12:00:00.000000Z",
            host_root=self.root,
            open_gpus=self.open_gpus,
            sleep=sleep,
            open_host=lambda root: Host(root, self.kernel),
            **changes,
        )


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here pulls the plug, so nothing has to reach the disk."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.write("etc/os-release", 'ID=rhel\nID_LIKE="fedora"\nVERSION_ID="9.4"\n')
    world.write("proc/modules", "")
    world.write("proc/sys/kernel/osrelease", KERNEL + "\n")
    for i in range(2):
        world.write(f"sys/bus/pci/devices/0000:00:1{i}.0/vendor", "0x10de\n")
        world.write(f"sys/bus/pci/devices/0000:00:1{i}.0/class", "0x030200\n")
    for directory in ("var/lib", "run", "usr/lib64", f"lib/modules/{KERNEL}", "sys/module"):
        (tmp_path / directory).mkdir(parents=True, exist_ok=True)
    return world


@pytest.fixture
def bare(tmp_path: Path) -> World:
    """A machine without a driver, with the programs that install one."""
    return World(tmp_path / "root", Machine(tmp_path, "rocky"))
