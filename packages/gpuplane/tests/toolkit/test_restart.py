"""Telling a runtime: the right process, only when needed, and what happens when it does not come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpuplane.toolkit import ToolkitError, apply, unconfigure
from gpuplane.toolkit import restart as restarting
from gpuplane.toolkit.applying import unconfigure as take_back
from gpuplane.toolkit.places import CONTAINERD, DOCKER
from packages.gpuplane.tests.toolkit.conftest import make_device

# Serves a socket and writes a letter to its output for each SIGHUP; with "once" it ends at the first one.
SERVER = """
import os, signal, socket, sys
path, mode = sys.argv[1:]
os.chdir(os.path.dirname(path))
server = socket.socket(socket.AF_UNIX)
server.bind(os.path.basename(path))
server.listen()
def hangup(*_):
    os.write(1, b"H")
    if mode == "once":
        os.unlink(os.path.basename(path))
        os._exit(0)
signal.signal(signal.SIGHUP, hangup)
os.write(1, b"R")
while True:
    server.accept()[0].close()
"""


@contextmanager
def served(world: Any, path: str, mode: str = "stays") -> Iterator[subprocess.Popen[bytes]]:
    (world.root / path).parent.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", SERVER, str(world.root / path), mode], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.read(1) == b"R"
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_docker_is_signalled_through_its_socket_only_when_something_changed(world: Any) -> None:
    with served(world, "run/docker.sock") as process:
        assert process.stdout is not None
        assert restarting.peer(world.host, DOCKER) == process.pid
        await apply(world.host, world.plan("docker"))
        assert process.stdout.read(1) == b"H"
        await apply(world.host, world.plan("docker"))
        make_device(world.root / "dev/nvidia-modeset", 254)
        assert await apply(world.host, world.plan("docker"))  # another CDI specification, which is read at each start
        await take_back(world.host)
        assert process.stdout.read(1) == b"H"
        os.set_blocking(process.stdout.fileno(), False)
        assert process.stdout.read(1) is None


async def test_a_death_before_the_signal_does_not_lose_it(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Died(BaseException):
        pass

    def die(*_: object) -> None:
        raise Died

    with served(world, "run/containerd/containerd.sock") as process:
        with monkeypatch.context() as patch, pytest.raises(Died):
            patch.setattr(os, "kill", die)
            await apply(world.host, world.plan("containerd"))
        assert await apply(world.host, world.plan("containerd")) == ()
        assert process.stdout is not None
        assert process.stdout.read(1) == b"H"


async def test_a_runtime_that_does_not_come_back_gets_its_configuration_back_and_is_left_alone(
    world: Any, tree_of: Any
) -> None:
    world.write("etc/containerd/config.toml", "version = 2\n")

    async def sleep(_: float) -> None:
        process.wait()  # what passes for time here is the end of the runtime

    with served(world, "run/containerd/containerd.sock", "once") as process:
        with pytest.raises(ToolkitError) as caught:
            await apply(world.host, world.plan("containerd"), sleep=sleep)
        assert caught.value.reason == "RuntimeDown"
    assert world.host.read_text("etc/containerd/config.toml") == "version = 2"
    assert not world.host.exists("etc/containerd/conf.d")
    assert not world.host.exists("run/nvidia/validations/toolkit-ready")
    kept = tree_of(world.root)
    with pytest.raises(ToolkitError, match="was taken back"):
        await apply(world.host, world.plan("containerd"), sleep=sleep)
    assert tree_of(world.root) == kept
    world.write("etc/containerd/config.toml", "version = 2\nroot = '/x'\n")
    assert await apply(world.host, world.plan("containerd"), sleep=sleep)


async def test_crio_is_restarted_by_systemd(world: Any) -> None:
    with served(world, "run/crio/crio.sock"):
        await apply(world.host, world.plan("cri-o"))
        assert world.runner.ran == ["systemctl restart crio"]
        world.runner.code = 1
        with pytest.raises(ToolkitError) as caught:
            await take_back(world.host)
        assert caught.value.reason == "RestartFailed"
        assert not world.host.exists("etc/crio/crio.conf.d")
        world.runner.code = 0
        await unconfigure(world.host)
        assert len(world.runner.ran) == 3
        assert not world.host.exists("var/lib/gpuplane")


async def test_a_runtime_that_is_not_running_is_no_error(world: Any) -> None:
    assert await apply(world.host, world.plan("containerd"))
    world.write("run/containerd/containerd.sock", "no socket at all")
    assert restarting.peer(world.host, CONTAINERD) is None


async def test_a_process_that_cannot_be_signalled_is_told(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        assert number == signal.SIGHUP
        raise PermissionError

    with served(world, "run/docker.sock"), monkeypatch.context() as patch:
        patch.setattr(os, "kill", refuse)
        with pytest.raises(ToolkitError) as caught:
            await apply(world.host, world.plan("docker"))
    assert caught.value.reason == "RuntimeNotVisible"
    assert "hostPID" in caught.value.cure
