"""The operand: one write for a success, one for a failure; a change that another program undoes is made again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplane import names
from gpuplane.host import DriverReady
from gpuplane.toolkit import applying, run, uninstall
from gpuplane.toolkit.facts import RUNTIMES
from kubekit.errors import Retryable
from kubekit.kube import NotFound, Unreachable
from packages.gpuplane.tests.toolkit.conftest import LIB
from packages.gpuplane.tests.toolkit.machine import VERSION
from tests.support.until import until


async def started(world: Any, condition: Callable[[], object], **changes: Any) -> asyncio.Task[None]:
    task = asyncio.create_task(run(world.context(**changes)))
    await until(condition, task=task)
    return task


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_success_is_one_write_and_a_restart_writes_nothing(world: Any, tree_of: Any) -> None:
    before = tree_of(world.root)
    task = await started(world, lambda: world.client.writes)
    (write,) = world.client.writes
    assert write["manager"] == "gpuplane-toolkit"
    assert write["stages"]["toolkit"]["state"] == "done"
    assert write["machine"] == {"runtime": "docker", "runtimeVersion": "24.0.7", "handlers": ()}
    await stop(task)
    whole = tree_of(world.root)
    task = asyncio.create_task(run(world.context()))
    for _ in range(50):
        await asyncio.sleep(0)
    await stop(task)
    assert tree_of(world.root) == whole
    assert len(world.client.writes) == 1
    await uninstall(world.context())
    assert tree_of(world.root) == before
    assert world.client.writes[-1]["stages"]["toolkit"]["state"] == "removed"


@pytest.mark.parametrize(
    ("runtime", "programs", "nri", "handlers"),
    [
        ("containerd://2.1.4", True, "", tuple(RUNTIMES)),
        ("containerd://1.7.24", True, "", tuple(RUNTIMES)),
        ("cri-o://1.33.1", True, "", tuple(RUNTIMES)),
        ("containerd://2.1.4", False, "", ()),
        ("containerd://2.1.4", True, "true", ()),
        ("docker://28.5.1", True, "", ()),
    ],
)
async def test_the_runtimes_that_a_runtime_class_may_choose_are_reported(
    make_world: Any, tmp_path: Path, runtime: str, programs: bool, nri: str, handlers: tuple[str, ...]
) -> None:
    world = make_world(tmp_path, programs=programs)
    world.write("usr/sbin/runc", "elf")
    world.write(names.NRI_SOCKET, "")
    world.client.runtime = runtime
    task = await started(world, lambda: world.client.writes, environment={names.NRI_ENV: nri})
    await stop(task)
    assert world.client.writes[-1]["machine"]["handlers"] == handlers


async def test_what_somebody_undoes_is_done_again_without_a_word(world: Any) -> None:
    task = await started(world, lambda: world.client.writes)
    for _ in range(10):
        await asyncio.sleep(0)
    world.write("etc/docker/daemon.json", '{"debug": true}')
    await until(lambda: b"nvidia" in (world.host.read("etc/docker/daemon.json") or b""), task=task)
    assert b"debug" in (world.host.read("etc/docker/daemon.json") or b"")
    world.host.remove("var/run/cdi/nvidia.com-gpu.json")
    await until(lambda: world.host.exists("var/run/cdi/nvidia.com-gpu.json"), task=task)
    await stop(task)
    assert {write["stages"]["toolkit"]["state"] for write in world.client.writes} == {"done"}


async def test_a_broken_configuration_is_reported_and_got_over(world: Any) -> None:
    world.write("etc/docker/daemon.json", '{"a": ')
    task = await started(world, lambda: world.client.writes)
    stage = world.client.writes[0]["stages"]["toolkit"]
    assert (stage["state"], stage["reason"]) == ("failed", "ConfigurationInvalid")
    assert stage["where"] == "/etc/docker/daemon.json:1:7"
    assert world.host.read_text("etc/docker/daemon.json") == '{"a":'
    world.write("etc/docker/daemon.json", "{}")
    await until(lambda: len(world.client.writes) == 2, task=task)
    await stop(task)
    assert world.client.writes[1]["stages"]["toolkit"]["state"] == "done"


async def test_gpus_that_do_not_answer_and_a_cluster_that_cannot_be_asked(world: Any) -> None:
    world.client.unreachable = [Unreachable("no answer"), NotFound("nodes n not found")]
    answers = world.answers

    def none() -> Any:
        raise Retryable("the driver is not loaded", where="NVML", cure="modprobe nvidia")

    world.answers = none
    task = await started(world, lambda: world.client.writes)
    stage = world.client.writes[0]["stages"]["toolkit"]
    assert (stage["state"], stage["reason"]) == ("failed", "GPUsDoNotAnswer")
    world.answers = answers
    await until(lambda: len(world.client.writes) == 2, task=task)
    await stop(task)


async def test_a_light_node_is_configured_without_watches(world: Any) -> None:
    async def vector_add(uuid: str) -> str:
        return uuid

    task = await started(world, lambda: world.client.writes, vector_add=vector_add)
    await stop(task)
    assert world.host.exists("etc/docker/daemon.json")


def give_driver_its_own_root(world: Any) -> None:
    """Move the driver's libraries where a driver's container mounts them; nothing names that root yet."""
    own = world.root / names.DRIVER_ROOT / LIB
    own.mkdir(parents=True)
    for path in (world.root / LIB).glob("lib[cn][uv]*"):
        path.rename(own / path.name)


def mounted(world: Any) -> list[str]:
    spec = json.loads(world.host.read("var/run/cdi/nvidia.com-gpu.json") or b"{}")
    return [mount["hostPath"] for mount in spec["containerEdits"].get("mounts", ())]


async def test_a_driver_that_answers_before_it_is_announced_is_found_in_its_own_root(world: Any) -> None:
    give_driver_its_own_root(world)
    task = await started(world, lambda: world.client.writes)
    assert f"/{names.DRIVER_ROOT}/{LIB}/libcuda.so.{VERSION}" in mounted(world)
    await stop(task)


async def test_a_driver_that_is_announced_while_the_runtime_restarts_is_not_missed(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was missed: the specification kept the devices and had no library, until the operand was restarted."""
    give_driver_its_own_root(world)
    (world.root / names.DRIVER_ROOT).rename(world.root / "other-root")
    announced = DriverReady(host_driver=False, root="/other-root").encode()

    async def restart(*_: Any) -> bool:
        world.write(names.DRIVER_READY, announced)
        return True

    monkeypatch.setattr(applying, "tell", restart)
    task = await started(world, lambda: world.client.writes)
    await until(lambda: f"/other-root/{LIB}/libcuda.so.{VERSION}" in mounted(world), task=task)
    await stop(task)
