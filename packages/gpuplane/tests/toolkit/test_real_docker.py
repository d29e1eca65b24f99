"""A real docker runs with our configuration, and after its end: Debian's, unpacked into the test's folder. Run by
`make test-kubernetes`, as root only."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from deploy.image.gpuplane_image import debian
from deploy.image.gpuplane_image.errors import ImageError
from gpulab.kubernetes import binaries
from gpuplane.host import Host
from gpuplane.toolkit import ToolkitError, by_hand, health
from gpuplane.toolkit.places import DOCKER

pytestmark = pytest.mark.deadline(600)  # a machine is made, and its runtime started, in the test itself

CACHE = Path.home() / ".cache/gpuplane/debian"
START = 120.0  # seconds


class Machine:
    """A root with docker's program, its configuration and a stand-in for NVIDIA's runtime."""

    def __init__(self, root: Path, program: Path) -> None:
        self.host, self.program = Host(root), program
        self.config = root / DOCKER.config
        self.text = f'{{\n\t"data-root": "{root}/data",\n\t"log-level": "info"\n}}'
        for path in (DOCKER.config, "usr/bin/nvidia-container-runtime", "var/lib/x", DOCKER.socket):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
        self.config.write_text(self.text)
        (root / "usr/bin/nvidia-container-runtime").touch()
        self.log = root / "log"

    @asynccontextmanager
    async def docker(self, *options: str) -> AsyncIterator[None]:
        root = self.host.root
        command = [str(self.program), f"--config-file={self.config}", f"--host=unix://{root}/{DOCKER.socket}"]
        command += ["--bridge=none", "--iptables=false", "--storage-driver=vfs"]
        command += [f"--exec-root={root}/exec", f"--pidfile={root}/pid", *options]
        path = f"{binaries.directory('containerd')}:{os.environ['PATH']}"
        with self.log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command, env={**os.environ, "PATH": path}, stdout=log, stderr=log
            )
        try:
            async with asyncio.timeout(START):
                while await health.info(self.host, DOCKER) is None:
                    if process.returncode is not None:
                        pytest.skip(f"docker does not start here: {self.log.read_text().splitlines()[-1]}")
                    await asyncio.sleep(0.05)
            yield
        finally:
            with suppress(ProcessLookupError):  # it ended by itself
                process.terminate()
            await asyncio.wait_for(process.wait(), START)
            # NB: docker mounts its directory onto itself, and leaves that; pytest could not remove the directory later.
            unmount = ["umount", "--lazy", f"{root}/data"]
            await asyncio.to_thread(subprocess.run, unmount, check=False, stderr=subprocess.DEVNULL)

    async def known(self) -> tuple[set[str], str]:
        found = await health.info(self.host, DOCKER)
        assert found is not None
        return {name for name in found.runtimes if "." not in name}, found.default_runtime

    def readings(self) -> int:
        return self.log.read_text().count("Got signal to reload")


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.config.getoption("--cluster") != "real" or not binaries.built("containerd") or os.geteuid() != 0:
        pytest.skip("runs with --cluster real, where a containerd was built, as root")
    try:
        (package,) = debian.fetch(("docker.io",), CACHE)
    except ImageError as error:
        pytest.skip(f"no docker can be had: {error}")
    root = tmp_path_factory.mktemp("docker")
    debian.unpack(package, root, ("usr/sbin/dockerd",))
    found = root / "usr/sbin/dockerd"
    if "not found" in subprocess.run(["ldd", found], capture_output=True, text=True, check=False).stdout:
        pytest.skip("this machine lacks libraries of docker's")
    return found


@pytest.fixture
def machine(tmp_path: Path, program: Path) -> Machine:
    return Machine(tmp_path, program)


async def test_a_real_docker_learns_and_forgets_without_a_restart(machine: Machine) -> None:
    async with machine.docker():
        pid = (machine.host.root / "pid").read_text()
        assert await machine.known() == ({"runc"}, "runc")
        assert (await by_hand.configure(machine.host)).place == "docker"
        assert await machine.known() == ({"runc", "nvidia"}, "nvidia")
        assert machine.readings() == 1
        assert (await by_hand.configure(machine.host)).changed == ()
        assert machine.readings() == 1
        await by_hand.unconfigure(machine.host)
        assert await machine.known() == ({"runc"}, "runc")
        assert machine.config.read_text() == machine.text
        assert (machine.host.root / "pid").read_text() == pid


async def test_a_real_docker_that_refuses_ours_has_its_own_back(machine: Machine) -> None:
    async with machine.docker("--default-runtime=runc"):
        with pytest.raises(ToolkitError) as caught:
            await by_hand.configure(machine.host)
        assert caught.value.reason == "ConfigurationRefused"
        assert machine.config.read_text() == machine.text
        assert await machine.known() == ({"runc"}, "runc")
