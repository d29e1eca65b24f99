"""The operand: one write for a success, one for each new failure, nothing taken back by a restart."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import NOT_LISTED
from gpuplane.driver import run, uninstall
from gpuplane.host import Command, Completed
from kubekit.kube import NotFound
from packages.gpuplane.tests.driver.conftest import KERNEL, World
from packages.gpuplane.tests.driver.machine import NEWER
from tests.support.until import until

WANTED = {names.DRIVER_VERSION_ENV: "570.133.20"}


async def started(world: Any, condition: Any, **changes: Any) -> asyncio.Task[None]:
    """The operand, running until `condition()` holds."""
    task = asyncio.create_task(run(world.context(**changes)))
    await until(condition, task=task)
    return task


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_success_is_one_write_with_the_inventory_and_a_restart_writes_nothing(bare: World) -> None:
    world = bare
    task = await started(world, lambda: world.client.writes, environment=WANTED)
    (write,) = world.client.writes
    assert write["stages"]["driver"]["state"] == "done"
    assert write["stages"]["driver"]["digest"].startswith("570.133.20-open-")
    assert write["machine"] == {"driver": "570.133.20", "cuda": "12.2"}
    assert [gpu["uuid"] for gpu in write["gpus"]] == ["GPU-0", "GPU-1"]
    assert world.host.read_text("run/nvidia/validations/driver-ready") == (
        "IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT=/run/nvidia/driver\nDRIVER_ROOT_CTR_PATH=/driver-root\n"
        "NVIDIA_DEV_ROOT=/\nDEV_ROOT_CTR_PATH=/host"
    )
    await stop(task)
    assert world.host.exists("sys/module/nvidia")
    ran = len(world.kernel.ran)
    task = await started(world, lambda: world.host.list("run"), environment=WANTED)
    for _ in range(20):
        await asyncio.sleep(0)
    await stop(task)
    assert len(world.client.writes) == 1
    assert len(world.kernel.ran) == ran


async def test_a_driver_of_the_host_is_present(world: Any) -> None:
    world.preinstall()
    await world.kernel.run(Command(("modprobe", "nvidia")))
    world.answering = 1
    task = await started(world, lambda: world.client.writes)
    stage = world.client.writes[0]["stages"]["driver"]
    assert stage["state"] == "present"
    assert (stage["message"], stage["where"]) == ("1 of 2 GPUs answer", "PCI 0000:00:11.0")
    assert "IS_HOST_DRIVER=true" in (world.host.read_text("run/nvidia/validations/driver-ready") or "")
    await stop(task)


async def test_a_lost_gpu_stays_lost_when_the_driver_starts_again(world: Any) -> None:
    world.preinstall()
    await stop(await started(world, lambda: world.client.writes))
    assert world.client.status.summary.gpus == "2/2"
    world.answering = 1
    await stop(await started(world, lambda: len(world.client.writes) == 2))
    status = world.client.status
    assert [(gpu.index, gpu.uuid, gpu.model) for gpu in status.gpus] == [
        (0, "GPU-0", "Tesla T4"),
        (1, "GPU-1", "Tesla T4"),
    ]
    assert status.health == {"GPU-1": NOT_LISTED}
    assert (status.summary.gpus, status.stages["driver"].message) == ("1/2", "1 of 2 GPUs answer")
    world.answering = 2
    await stop(await started(world, lambda: len(world.client.writes) == 3))
    assert "health" not in world.client.writes[-1]
    assert world.client.status.summary.gpus == "2/2"


async def test_a_lost_gpu_keeps_the_fault_that_was_seen(bare: World) -> None:
    world = bare
    await stop(await started(world, lambda: world.client.writes, environment=WANTED))
    world.client.status = msgspec.structs.replace(world.client.status, health={"GPU-0": "Xid 79: fallen off the bus"})
    world.answering = 1
    await stop(await started(world, lambda: len(world.client.writes) == 2, environment=WANTED))
    assert world.client.writes[-1]["health"] == {"GPU-1": NOT_LISTED}
    world.client.status = msgspec.structs.replace(world.client.status, health={"GPU-1": "Xid 79: fallen off the bus"})
    other = {names.DRIVER_VERSION_ENV: NEWER}
    await stop(await started(world, lambda: len(world.client.writes) == 3, environment=other))
    assert world.client.writes[-1]["health"] == {"GPU-1": "Xid 79: fallen off the bus"}


async def test_a_gpu_that_never_answered_is_lost_and_one_of_a_virtual_machine_is_not(world: Any) -> None:
    world.preinstall()
    world.answering = 1
    await stop(await started(world, lambda: world.client.writes))
    assert [gpu.uuid for gpu in world.client.status.gpus] == ["GPU-0", "0000:00:11.0"]
    assert world.client.status.health == {"0000:00:11.0": NOT_LISTED}
    (world.root / "sys/bus/pci/devices/0000:00:11.0/driver").symlink_to("../../../bus/pci/drivers/vfio-pci")
    await stop(await started(world, lambda: len(world.client.writes) == 2))
    assert [gpu.uuid for gpu in world.client.status.gpus] == ["GPU-0"]
    assert world.client.status.summary.gpus == "1/1"


async def test_a_failure_is_one_write_until_its_message_changes_and_is_got_over(world: Any) -> None:
    world.preinstall()
    world.kernel.broken["modprobe"] = Completed(Command(("x",)), 127)

    def other_failure() -> None:
        world.kernel.broken["modprobe"] = Completed(Command(("x",)), 1, stderr="Required key not available")

    world.between = [lambda: None, lambda: None, other_failure, lambda: None, world.kernel.broken.clear]
    task = await started(world, lambda: len(world.client.writes) == 3)
    await stop(task)
    stages = [write["stages"]["driver"] for write in world.client.writes]
    assert [stage.get("reason") for stage in stages] == ["ModprobeMissing", "SecureBoot", None]
    assert stages[0]["cure"] == "install the package kmod on the node"
    assert stages[2]["state"] == "present"
    assert world.pauses == [1.0, 2.0, 4.0, 8.0, 16.0]


async def test_gpus_that_do_not_answer_are_a_failure(world: Any) -> None:
    world.preinstall()
    world.answering = 0
    task = await started(world, lambda: world.client.writes)
    await stop(task)
    assert world.client.writes[0]["stages"]["driver"]["reason"] == "GPUsDoNotAnswer"
    assert not world.host.exists("run/nvidia/validations/driver-ready")


async def test_a_driver_whose_library_was_upgraded_alone_is_unusable_until_its_modules_are_reloaded(world: Any) -> None:
    world.preinstall()
    await world.kernel.run(Command(("modprobe", "nvidia")))
    world.write("usr/lib64/libnvidia-ml.so.1", NEWER)
    world.write(f"lib/modules/{KERNEL}/updates/nvidia.ko", f"version={NEWER}\n")

    def reload() -> None:
        for tool in ("rmmod", "modprobe"):
            world.kernel.one(Command((tool,)), tool, "nvidia")

    world.between = [lambda: None, reload]
    await stop(await started(world, lambda: len(world.client.writes) == 2))
    failed, reloaded = (write["stages"]["driver"] for write in world.client.writes)
    assert failed["reason"] == "DriverUnusable"
    assert failed["cure"] == "reload the driver's modules, or reboot the node"
    assert reloaded["state"] == "present"
    assert world.client.status.machine.driver == NEWER


async def test_a_gpunode_that_does_not_exist_yet_is_waited_for(world: Any) -> None:
    world.preinstall()
    world.client.unreachable = [NotFound("gpunodes n not found"), NotFound("gpunodes n not found")]
    task = await started(world, lambda: world.client.writes)
    await stop(task)
    assert [write["stages"]["driver"]["state"] for write in world.client.writes] == ["present"]


async def test_a_module_that_somebody_unloads_is_loaded_again_without_a_word(world: Any) -> None:
    world.preinstall()
    task = await started(world, lambda: world.client.writes)
    for _ in range(5):
        await asyncio.sleep(0)
    for module in ("nvidia_modeset", "nvidia_uvm", "nvidia"):
        await world.kernel.run(Command(("rmmod", module)))
    async with asyncio.timeout(60):
        async for _ in world.host.watch("sys/module/nvidia/version"):
            if world.host.exists("sys/module/nvidia/version"):
                break
    await stop(task)
    assert len(world.client.writes) == 1


async def test_installing_switched_off(world: Any) -> None:
    task = await started(world, lambda: world.client.writes, environment={**WANTED, "GPUPLANE_DRIVER_INSTALL": "false"})
    await stop(task)
    assert world.client.writes[0]["stages"]["driver"]["reason"] == "DriverDisabled"


async def test_uninstall_reports_removed_and_says_why_while_it_cannot(bare: World) -> None:
    world = bare
    await stop(await started(world, lambda: world.client.writes, environment=WANTED))
    world.kernel.hold(1)
    world.between = [lambda: world.kernel.hold(0)]
    await uninstall(world.context())
    stages = [write["stages"]["driver"] for write in world.client.writes]
    assert [(stage["state"], stage.get("reason")) for stage in stages[1:]] == [
        ("failed", "ModuleInUse"),
        ("removed", None),
    ]
    assert not world.host.exists("run/nvidia")
    assert not world.host.exists(names.DRIVER_STORE)
