"""Hosts with a container runtime and a driver, and a GPUNode that records its writes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpulab.device_files import presenting
from gpuplane.host import Command, Completed, Host
from gpuplane.operand import OperandContext
from gpuplane.toolkit import ToolkitFacts, ToolkitPlan, observe, plan, restart, shipped
from gpuplane.toolkit.facts import RUNTIMES
from kubekit.api.core import Node
from packages.gpuplane.tests.toolkit.machine import GPUS, VERSION, Machine, Tree, fresh, tree
from tests.support.fake_gpus import FakeGPUs
from tests.support.fake_node_client import FakeNodeClient

LIB = "usr/lib64"


class FakeRunner:
    """A systemctl with the answers that a test sets."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.code = 0

    async def run(self, command: Command) -> Completed:
        self.ran.append(str(command))
        return Completed(command, self.code, stderr="Job for crio.service failed" if self.code else "")


class World:
    """A host with a driver; with NVIDIA's runtime, where `programs` are there."""

    def __init__(self, root: Path, *, programs: bool = True) -> None:
        self.root = root
        self.runner = FakeRunner()
        self.host = Host(root, self.runner)
        self.client = FakeNodeClient(fails=Node)
        self.answers: Callable[[], Any] = lambda: FakeGPUs(GPUS, VERSION)
        for path in ("var/lib", "run", "etc/containerd", "etc/docker", "etc/crio", LIB, "dev"):
            (root / path).mkdir(parents=True, exist_ok=True)
        for soname in ("libcuda", "libnvidia-ml"):
            self.write(f"{LIB}/{soname}.so.{VERSION}", "elf")
            self.host.symlink(f"{LIB}/{soname}.so.1", f"{soname}.so.{VERSION}")
            self.host.symlink(f"{LIB}/{soname}.so", f"{soname}.so.1")
        self.write(f"{LIB}/libc.so.6", "elf")
        for minor, name in enumerate(("nvidia0", "nvidia1", "nvidia-uvm", "nvidiactl")):
            make_device(root / "dev" / name, minor)
        for program in RUNTIMES.values() if programs else ():
            self.write(f"usr/bin/{program}", "elf")

    def write(self, path: str, data: str | bytes) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(data.encode() if isinstance(data, str) else data)

    def observe(self, runtime: str, **options: Any) -> ToolkitFacts:
        return observe(self.host, gpus=GPUS, driver_version=VERSION, runtime=runtime, **options)

    def plan(self, runtime: str, *, set_as_default: bool | None = None, **options: Any) -> ToolkitPlan:
        return plan(self.observe(runtime, **options), set_as_default=set_as_default)

    def context(self, **changes: Any) -> OperandContext:
        async def sleep(seconds: float) -> None:
            await asyncio.sleep(0)

        return OperandContext(
            node_name="n",
            namespace="gpu-operator",
            client=self.client,  # type: ignore[arg-type]  # the part of it that is used
            now=lambda: "2026-11-20T12:00:00.000000Z",
            host_root=self.root,
            open_gpus=lambda: self.answers(),
            sleep=sleep,
            open_host=lambda root: Host(root, self.runner),
            **changes,
        )


def make_device(path: Path, minor: int) -> None:
    """A file that the fixture `devices` shows as a character device, which only root can make."""
    path.write_text(f"195 {minor}\n")
    path.chmod(0o1666)


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "stat", presenting(os.stat))


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here pulls the plug, so nothing has to reach the disk."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "image"
    place.mkdir()
    for name in ("nvidia-container-runtime", "nvidia-ctk", "nvidia-cdi-hook"):
        (place / name).write_text(f"{name} of the image")
    monkeypatch.setattr(shipped, "IMAGE", place)
    return place


@pytest.fixture
def bare(tmp_path: Path, image: Path) -> World:
    """A host without any of NVIDIA's programs."""
    world = World(tmp_path / "host", programs=False)
    world.write("usr/sbin/runc", "elf")
    return world


@pytest.fixture
def make_world() -> Callable[..., World]:
    return World


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory in memory where there is such a place: thousands of hosts are made in it."""
    if os.access("/dev/shm", os.W_OK):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            yield Path(directory)
    else:
        yield tmp_path_factory.mktemp("memory")


@pytest.fixture(scope="session")
def listener(memory: Path) -> Iterator[tuple[Path, int]]:
    """Yield a socket whose listener understands nothing, and the listener's process id."""
    path = memory / "s"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    child = os.fork()
    if child == 0:
        while True:
            server.accept()[0].close()
    server.close()
    yield path, child
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.fixture
def machine(
    memory: Path, listener: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Machine]]:
    monkeypatch.setattr(restart, "_ITS_OWN_TIME", 0.1)
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield lambda case: Machine(Path(directory) / "m", case, listener, fresh(case))


@pytest.fixture
def tree_of() -> Callable[[Path], Tree]:
    return tree


@pytest.fixture
def nvidias_programs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's own toolkit programs as the image's, for machines with a real runtime; without either, skip the test."""
    # Late: the other tests of this folder build nothing.
    from deploy.image.gpuplane_image import ImageError
    from deploy.image.gpuplane_image.images import nvidia_programs
    from packages.gpuplane.tests.toolkit.real_machine import lacking

    why = lacking() if request.config.getoption("--cluster") == "real" else "runs with --cluster real"
    if why:
        pytest.skip(why)
    try:
        monkeypatch.setattr(shipped, "IMAGE", nvidia_programs())
    except ImageError as error:
        pytest.skip(f"NVIDIA's programs cannot be built: {error}")
