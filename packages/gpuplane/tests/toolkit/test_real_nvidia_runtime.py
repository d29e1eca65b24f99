"""NVIDIA's own runtime, installed by gpuplane, under real containerds and dockers: by name, as default, and by CDI."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplane.names import CDI_MANAGEMENT_KIND
from gpuplane.toolkit import apply, health, observe, plan
from gpuplane.toolkit.applying import unconfigure
from gpuplane.toolkit.cdi_spec import SPEC
from gpuplane.toolkit.places import DOCKER as DOCKER_PATHS
from packages.gpuplane.tests.toolkit.cri import CRI
from packages.gpuplane.tests.toolkit.machine import GPUS, VERSION
from packages.gpuplane.tests.toolkit.real_machine import (
    BUSYBOX,
    CONFIG,
    DOCKER,
    DOCKER_RELEASES,
    LIB,
    RELEASES,
    RealMachine,
    assert_named,
    bring_busybox,
    containerd_machine,
    docker_machine,
    started,
)
from tests.support.until import until

pytestmark = [
    pytest.mark.deadline(600),  # a machine is made, and its runtime started, in the test itself
    pytest.mark.usefixtures("nvidias_programs"),
]

SLEEP = ("/bin/busybox", "sleep", "1000")
TOOLKIT = "usr/local/nvidia"


VISIBLE = f"ls /dev /{LIB} 2>/dev/null"
ONE, BOTH = {"nvidia1", "nvidiactl", "libcuda.so.1"}, {"nvidia0", "nvidia1", "nvidiactl", "libcuda.so.1"}


async def configure(machine: RealMachine, runtime: str, *, set_as_default: bool | None = None) -> None:
    facts = observe(machine.host, gpus=GPUS, driver_version=VERSION, runtime=runtime)
    await apply(machine.host, plan(facts, set_as_default=set_as_default))


async def gpus_of(
    cri: CRI, name: str, handler: str = "", visible: str = "", cdi: tuple[str, ...] = (), annotated: str = ""
) -> set[str]:
    """The device nodes and the driver's library that a new pod's container sees."""
    pod = await cri.run_pod(name, handler)
    env = {"NVIDIA_VISIBLE_DEVICES": visible} if visible else {}
    named = {"cdi.k8s.io/a": annotated} if annotated else {}
    container = await cri.run_container(pod, BUSYBOX, SLEEP, env, cdi, annotations=named)
    found = await cri.execute(container, "/bin/busybox", "sh", "-c", VISIBLE)
    await cri.remove_pod(pod)
    return of_nvidia(found.text)


def of_nvidia(listing: str) -> set[str]:
    return {word for word in listing.split() if word.startswith(("nvidia", "libcuda.so.1"))}


@pytest.mark.parametrize("release", RELEASES)
async def test_pods_get_their_gpus_from_nvidias_runtime_and_it_goes_again(tmp_path: Path, release: str) -> None:
    machine = containerd_machine(tmp_path / "machine", release)
    machine.with_driver(VERSION)
    async with started(machine, tmp_path) as cri:
        assert_named(release, await cri.version(), RELEASES)
        runtime = f"containerd://{await cri.version()}"
        await configure(machine, runtime, set_as_default=False)
        assert await gpus_of(cri, "class", "nvidia", "GPU-0") == ONE
        assert await gpus_of(cri, "all", "nvidia", "all") == BOTH
        assert await gpus_of(cri, "managing", "nvidia", f"{CDI_MANAGEMENT_KIND}=all") == BOTH  # as the exporter asks
        assert await gpus_of(cri, "class-cdi", "nvidia-cdi", "0") == ONE
        assert await gpus_of(cri, "class-legacy", "nvidia-legacy", "0") == ONE
        assert await gpus_of(cri, "no-gpu", "nvidia") == set()
        assert await gpus_of(cri, "void", "nvidia", "void") == set()
        assert await gpus_of(cri, "plain", "", "GPU-0") == set()
        assert await gpus_of(cri, "annotated", "nvidia", annotated="nvidia.com/gpu=GPU-0") == ONE
        if "://1.6" not in runtime:  # its CRI knows no CDI
            gpu = ("nvidia.com/gpu=GPU-0",)
            assert await gpus_of(cri, "cdi", cdi=gpu) == ONE
            assert await gpus_of(cri, "cdi-and-class", "nvidia", "GPU-0", gpu) == ONE
        await configure(machine, runtime, set_as_default=True)
        assert await gpus_of(cri, "default", "", "GPU-0") == ONE
        assert await gpus_of(cri, "default-no-gpu") == set()
        (machine.root / SPEC).unlink()  # as after a reboot, before the driver is there
        assert await gpus_of(cri, "no-driver", "", "all") == set()
        await configure(machine, runtime, set_as_default=True)
        await unconfigure(machine.host)
        assert not (machine.root / TOOLKIT).exists()
        assert await gpus_of(cri, "after", "", "GPU-0") == set()


@pytest.mark.parametrize("release", ["bookworm", "trixie"])
async def test_runtimes_of_the_old_kind_start_nvidias_too(tmp_path: Path, release: str) -> None:
    machine = containerd_machine(tmp_path / "machine", release)
    machine.with_driver(VERSION)
    table = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]'
    old = f'\n{table}\nruntime_type = "io.containerd.runtime.v1.linux"\n'
    machine.write(CONFIG, (machine.root / CONFIG).read_text() + old)
    async with started(machine, tmp_path) as cri:
        assert await gpus_of(cri, "before", "", "GPU-0") == set()
        await configure(machine, f"containerd://{await cri.version()}", set_as_default=False)
        assert await gpus_of(cri, "class", "nvidia", "GPU-0") == ONE
        assert await gpus_of(cri, "plain", "", "GPU-0") == set()


async def restart_docker(machine: RealMachine) -> None:
    """End docker, which the machine then starts again; returns when the new one answers."""
    pid = "/var/run/docker.pid"
    before = machine.run("busybox", "cat", pid).stdout
    assert machine.run("busybox", "kill", before.strip()).returncode == 0

    async def is_another() -> bool:
        now = machine.run("busybox", "cat", pid).stdout
        return now not in ("", before) and await health.info(machine.host, DOCKER_PATHS) is not None

    await until(is_another, what="docker again", seconds=120.0, seen=lambda: machine.log[-2000:])


@pytest.mark.parametrize("release", list(DOCKER))
async def test_docker_gives_containers_their_gpus_by_nvidias_runtime(tmp_path: Path, release: str) -> None:
    machine = docker_machine(tmp_path / "machine", release)
    machine.with_driver(VERSION)
    async with machine.running():
        await until(lambda: health.info(machine.host, DOCKER_PATHS), what="docker", seen=lambda: machine.log[-2000:])
        loaded = machine.run("docker", "load", "--input", bring_busybox(machine, tmp_path))
        assert loaded.returncode == 0, loaded.stderr

        def gpus(*options: str) -> set[str]:
            shell = ("--entrypoint=/bin/busybox", BUSYBOX, "sh", "-c", f"{VISIBLE}; echo done")
            done = machine.run("docker", "run", "--rm", "--network=host", *options, *shell)
            assert "done" in done.stdout, done.stderr
            return of_nvidia(done.stdout)

        assert gpus("--env=NVIDIA_VISIBLE_DEVICES=GPU-0") == set()
        version = await health.release(machine.host, DOCKER_PATHS)
        assert_named(release, version, DOCKER_RELEASES)
        await configure(machine, f"docker://{version}")
        assert gpus("--env=NVIDIA_VISIBLE_DEVICES=GPU-0") == ONE  # it is the default
        assert gpus("--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=all") == BOTH
        assert gpus("--runtime=runc", "--env=NVIDIA_VISIBLE_DEVICES=all") == set()
        assert gpus() == set()
        knows = tuple(map(int, version.split(".")[:2]))
        if (25, 0) <= knows < (28, 2):  # it reads `features.cdi` when it starts
            assert (
                "error" in machine.run("docker", "run", "--rm", "--device=nvidia.com/gpu=GPU-0", BUSYBOX).stderr.lower()
            )
            await restart_docker(machine)
        if knows >= (25, 0):
            assert gpus("--device=nvidia.com/gpu=GPU-0") == ONE
        await unconfigure(machine.host)
        assert not (machine.root / TOOLKIT).exists()
        assert gpus("--env=NVIDIA_VISIBLE_DEVICES=GPU-0") == set()
