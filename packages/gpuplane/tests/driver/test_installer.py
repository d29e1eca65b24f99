"""Drivers of a host's own: found, loaded, left alone. Drivers that gpuplane installs are in test_life.py."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from gpuplane.driver import Action, DriverError, install
from gpuplane.driver.installer import LOCK, uninstall
from gpuplane.host import Command, Completed, Host, Locked

KERNEL = "5.15.0-1051-aws"


def tree(root: Path) -> dict[str, tuple[str, int, bytes]]:
    found = {}
    for path in sorted(root.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.is_symlink():
            found[str(path.relative_to(root))] = ("link", 0, os.fsencode(path.readlink()))
        else:
            found[str(path.relative_to(root))] = ("d", mode, b"") if path.is_dir() else ("f", mode, path.read_bytes())
    return found


async def test_a_driver_of_the_hosts_own_is_found_and_left_alone(world: Any) -> None:
    world.preinstall()
    await world.kernel.run(Command(("modprobe", "nvidia")))
    before = tree(world.root)
    _, decision = await install(world.host)
    assert decision.action is Action.PRESENT
    assert tree(world.root) == before
    await uninstall(world.host)
    assert tree(world.root) == before


async def test_a_driver_that_is_there_but_not_loaded_is_loaded(world: Any) -> None:
    world.preinstall()
    facts, decision = await install(world.host, may_install=False)
    assert decision.action is Action.PRESENT
    assert facts.module == "535.161.08"


async def test_a_host_driver_without_every_module_is_good_enough(world: Any) -> None:
    world.preinstall()
    (world.root / f"lib/modules/{KERNEL}/updates/nvidia-modeset.ko").unlink()
    assert (await install(world.host))[1].action is Action.PRESENT
    (world.root / f"lib/modules/{KERNEL}/updates/nvidia.ko").unlink()
    await world.kernel.run(Command(("rmmod", "nvidia_uvm")))
    await world.kernel.run(Command(("rmmod", "nvidia")))
    with pytest.raises(DriverError) as caught:
        await install(world.host)
    assert caught.value.reason == "ModprobeFailed"


@pytest.mark.parametrize(
    ("tool", "answer", "reason", "cure"),
    [
        ("modprobe", Completed(Command(("x",)), 127, stderr="no such file"), "ModprobeMissing", "kmod"),
        (
            "modprobe",
            Completed(Command(("x",)), 1, stderr="Key was rejected by service"),
            "SecureBoot",
            "mokutil --import",
        ),
    ],
)
async def test_a_host_tool_that_fails_is_told_with_reason_and_cure(
    world: Any, tool: str, answer: Completed, reason: str, cure: str
) -> None:
    world.preinstall()
    world.kernel.broken[tool] = answer
    with pytest.raises(DriverError) as caught:
        await install(world.host)
    assert caught.value.reason == reason
    assert cure in caught.value.cure
    assert "modprobe -a nvidia" in caught.value.where
    del world.kernel.broken[tool]
    assert (await install(world.host))[1].action is Action.PRESENT


async def test_one_installer_at_a_time(world: Any) -> None:
    world.preinstall()
    with world.host.lock(LOCK), pytest.raises(Locked):
        await install(Host(world.root, world.kernel))
    assert (await install(world.host))[1].action is Action.PRESENT
