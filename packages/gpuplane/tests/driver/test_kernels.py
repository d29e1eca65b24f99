"""The operand on machines that get a new kernel: it builds the driver for the kernel, whose first boot is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuplane.driver.hook import new_kernel
from gpuplane.driver.observing import compiler_of, observe
from packages.gpuplane.tests.driver.conftest import World
from packages.gpuplane.tests.driver.machine import SYSTEMS, VERSION, Machine
from packages.gpuplane.tests.driver.test_operand import started, stop
from tests.support.until import until


@pytest.fixture(autouse=True)
def wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVER_VERSION", VERSION)
    monkeypatch.setenv("BASE_URL", "https://mirror.example/tesla")


def world_of(machine: Machine) -> Any:
    world = World(machine.root)
    world.kernel = machine  # type: ignore[assignment]  # the runner
    world.host = machine.host
    return world


def stage(world: Any, number: int = -1) -> dict[str, Any]:
    found: dict[str, Any] = world.client.writes[number]["stages"]["driver"]
    return found


def built(machine: Machine) -> tuple[str, ...]:
    return observe(machine.host).built


@pytest.mark.parametrize("system", list(SYSTEMS))
async def test_the_next_kernel_is_made_ready_while_this_one_runs(tmp_path: Path, system: str) -> None:
    machine = Machine(tmp_path, system)
    old, new = machine.system.kernels
    machine.stock("*")
    world = world_of(machine)
    task = await started(world, lambda: world.client.writes)
    assert built(machine) == (old,)
    machine.install_kernel(new)
    await until(lambda: new in built(machine))
    await stop(task)
    # No event was written: the stage went on holding, and its first boot needs no network.
    assert len(world.client.writes) == 1
    machine.stock()
    machine.boot(new)
    task = await started(world, lambda: machine.host.exists("run/nvidia/validations/driver-ready"))
    await stop(task)
    assert machine.loaded == f"{VERSION} open"


@pytest.mark.parametrize("system", list(SYSTEMS))
async def test_what_the_next_kernel_lacks_is_told_before_its_boot(tmp_path: Path, system: str) -> None:
    machine = Machine(tmp_path, system)
    new = machine.system.kernels[1]
    world = world_of(machine)
    task = await started(world, lambda: world.client.writes)
    machine.stock("nothing")
    (machine.state / "kernels").write_text(f"{machine.system.kernels[0]}\n")
    machine.install_kernel(new)
    await until(lambda: len(world.client.writes) >= 2)
    await stop(task)
    assert stage(world)["state"] == "done"
    assert stage(world)["message"].startswith(f"not ready for the installed kernel {new}: no ")
    assert machine.loaded == f"{VERSION} open"


async def test_a_kernel_that_came_before_us_does_not_hold_the_driver_up(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "ubuntu")
    old, new = machine.system.kernels
    machine.install_kernel(new)
    assert new_kernel(machine.host) == new
    world = world_of(machine)
    made: list[tuple[str, ...]] = []
    report = world.client.apply

    async def apply(*args: Any, **named: Any) -> Any:
        made.append(built(machine))
        return await report(*args, **named)

    world.client.apply = apply
    task = await started(world, lambda: built(machine) == (old, new))
    await stop(task)
    assert made == [(old,)]  # reported first


def test_a_kernel_without_modules_is_none(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "sles")
    machine.boots_next("6.9.9-default")
    assert new_kernel(machine.host) == ""
    machine.write("boot/vmlinuz-x", "no link")
    assert new_kernel(Machine(tmp_path / "other", "rocky").host) == ""


@pytest.mark.parametrize(
    ("config", "version", "compiler"),
    [
        ('CONFIG_CC_VERSION_TEXT="x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0"\n', "", "gcc-12"),
        ("", "Linux version 6.1.0-18-amd64 (x@debian.org) (gcc-12 (Debian 12.2.0-14) 12.2.0, GNU ld)", "gcc-12"),
        ('CONFIG_CC_VERSION_TEXT="gcc (GCC) 11.4.1 20230605 (Red Hat 11.4.1-2)"\n', "", "gcc"),
        ("", "Linux version 6.4.0-150600.23.47-default (geeko@buildhost) (gcc (SUSE Linux) 7.5.0)", "gcc"),
    ],
)
def test_the_compiler_of_a_kernel(tmp_path: Path, config: str, version: str, compiler: str) -> None:
    machine = Machine(tmp_path, "ubuntu")
    running, later = machine.system.kernels
    machine.write(f"boot/config-{running}", config)
    machine.write("proc/version", version)
    assert compiler_of(machine.host) == compiler
    machine.write(f"boot/config-{later}", 'CONFIG_CC_VERSION_TEXT="x86_64-linux-gnu-gcc-13 (Ubuntu 13.2.0) 13.2.0"\n')
    assert compiler_of(machine.host, later) == "gcc-13"
