"""NVIDIA's driver images: our operand makes room for the image's driver, then waits for it and reports it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpuplane import names
from gpuplane.driver import install, run
from gpuplane.driver.installer import uninstall
from gpuplane.host import Command
from packages.gpuplane.tests.driver.conftest import VERSION, World
from packages.gpuplane.tests.driver.test_operand import started, stop
from tests.support.until import until

READY = "run/nvidia/validations/.driver-ctr-ready"


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPLANE_DRIVER_SOURCE", "before-container")


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPLANE_DRIVER_SOURCE", "container")


def loads(world: Any, version: str = VERSION) -> None:
    """Do the last step of the image's entry point: its root is mounted, its module is loaded."""
    world.write("run/nvidia/driver/usr/lib64/libnvidia-ml.so.1", "theirs")
    world.write("run/nvidia/driver/dev/nvidiactl", "")
    world.write("sys/module/nvidia/version", version + "\n")


def unloads(world: Any) -> None:
    """Unload the driver as the image does on a signal, after its pod's preStop."""
    (world.root / READY).unlink()
    (world.root / "sys/module/nvidia/version").unlink()
    (world.root / "sys/module/nvidia").rmdir()


async def quiet(world: Any) -> None:
    """Give the operand the time to do something wrong."""
    for _ in range(50):
        await asyncio.sleep(0.001)


@pytest.mark.usefixtures("before")
async def test_a_bare_node_is_left_to_the_image_at_once(world: Any) -> None:
    async with asyncio.timeout(60):
        await run(world.context())
    assert world.client.writes == []
    assert world.kernel.ran == []


@pytest.mark.usefixtures("before")
async def test_a_node_with_a_driver_of_its_own_never_gets_the_image(world: Any) -> None:
    world.preinstall()
    await world.kernel.run(Command(("modprobe", "nvidia")))
    task = await started(world, lambda: world.client.writes)
    await quiet(world)
    assert not task.done(), "the init container has to stay, so that the image's does not start"
    await stop(task)
    assert [write["stages"]["driver"]["state"] for write in world.client.writes] == ["present"]


@pytest.mark.usefixtures("before")
async def test_a_driver_that_we_installed_goes_before_the_image_comes(bare: World) -> None:
    world = bare
    await install(world.host)
    assert world.host.exists(names.DRIVER_STORE)
    async with asyncio.timeout(60):
        await run(world.context())
    assert not world.host.exists("sys/module/nvidia")
    assert not world.host.exists(names.DRIVER_STORE)


async def test_the_root_of_a_driver_container_that_was_killed_is_unmounted_at_uninstall(bare: World) -> None:
    machine = bare.kernel
    machine.write("run/nvidia/driver/usr/lib64/libcuda.so.1", "theirs")
    machine.write("proc/1/mounts", "/dev/sda1 / ext4 rw 0 0\noverlay /run/nvidia/driver overlay rw 0 0\n")
    (machine.state / "upper").write_text("/var/lib/upper")
    machine.write("sys/module/nvidia/version", "570.1\n")
    await uninstall(bare.host)
    assert machine.ran == [], "its driver is in use"
    (machine.root / "sys/module/nvidia/version").unlink()
    await uninstall(bare.host)
    assert machine.ran == ["umount -R -l /run/nvidia/driver"]
    assert not bare.host.exists("run/nvidia")


@pytest.mark.usefixtures("beside")
async def test_its_driver_is_reported_when_its_probe_has_passed_and_not_before(world: Any) -> None:
    task = await started(world, lambda: world.kernel is not None)
    loads(world)
    await quiet(world)
    assert world.client.writes == [], "loaded is not yet ready"
    world.write(READY, "")
    await until(lambda: world.client.writes)
    await quiet(world)
    await stop(task)
    (write,) = world.client.writes
    assert write["stages"]["driver"]["state"] == "done"
    assert write["machine"] == {"driver": VERSION, "cuda": "12.2"}
    assert [gpu["uuid"] for gpu in write["gpus"]] == ["GPU-0", "GPU-1"]
    said = (world.host.read_text("run/nvidia/validations/driver-ready") or "").splitlines()
    assert {"IS_HOST_DRIVER=false", "NVIDIA_DRIVER_ROOT=/run/nvidia/driver"} < set(said)
    assert "NVIDIA_DEV_ROOT=/run/nvidia/driver" in said
    assert world.kernel.ran == [], "the image installs, nobody else"


@pytest.mark.usefixtures("beside")
async def test_another_version_of_the_image_is_reported_when_it_is_there(world: Any) -> None:
    loads(world)
    world.write(READY, "")
    task = await started(world, lambda: world.client.writes)
    unloads(world)
    await quiet(world)
    assert len(world.client.writes) == 1
    loads(world, "580.65.06")
    world.write(READY, "")
    await until(lambda: len(world.client.writes) >= 2)
    await stop(task)
    assert world.client.writes[1]["machine"]["driver"] == "580.65.06"
