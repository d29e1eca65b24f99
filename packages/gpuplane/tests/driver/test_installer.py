"""Installing on roots: finding, installing, dying anywhere, taking back byte for byte."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from gpuplane.driver import Action, DriverError, install
from gpuplane.driver.installer import LOCK, uninstall
from gpuplane.host import Command, Completed, Host, Locked, revert

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


def host_link(path: Path) -> str:
    return str(path.readlink())


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


async def test_simulated_hardware_gets_its_driver_and_gives_it_back(world: Any) -> None:
    world.simulated()
    before = tree(world.root)
    facts, decision = await install(world.host)
    assert decision.action is Action.DONE
    assert facts.module == "535.161.08"
    lib = world.root / "usr/lib64"
    assert host_link(lib / "libcuda.so") == "libcuda.so.1"
    assert host_link(lib / "libcuda.so.1") == "libcuda.so.535.161.08"
    assert (lib / "libnvidia-ml.so.1").read_bytes() == b"\x7fELF nvml"
    assert stat.S_IMODE((lib / "libcuda.so.535.161.08").stat().st_mode) == 0o755
    assert world.kernel.ran == ["modprobe -a nvidia nvidia-uvm nvidia-modeset"]
    installed = tree(world.root)
    assert (await install(world.host))[1].action is Action.DONE
    assert len(world.kernel.ran) == 1
    assert tree(world.root) == installed
    await uninstall(world.host)
    assert tree(world.root) == before
    await uninstall(world.host)
    assert tree(world.root) == before


async def test_debian_has_its_libraries_elsewhere(world: Any) -> None:
    world.simulated()
    world.write("etc/os-release", "ID=ubuntu\nID_LIKE=debian\n")
    await install(world.host)
    assert list((world.root / "usr/lib").glob("*-linux-gnu/libcuda.so.1"))


async def test_new_hardware_version_replaces_the_loaded_driver(world: Any) -> None:
    world.simulated()
    await install(world.host)
    world.simulated("550.54.15")
    facts, _ = await install(world.host)
    assert facts.module == "550.54.15"
    assert sorted(p.name for p in (world.root / "usr/lib64").glob("libcuda.so.5*")) == ["libcuda.so.550.54.15"]
    world.kernel.hold(2)
    world.simulated("560.1")
    with pytest.raises(DriverError) as caught:
        await install(world.host)
    assert caught.value.reason == "ModuleInUse"


@pytest.mark.parametrize(
    ("tool", "answer", "reason", "cure"),
    [
        ("modprobe", Completed(Command(("x",)), 127, stderr="no such file"), "ModprobeMissing", "kmod"),
        (
            "modprobe",
            Completed(Command(("x",)), 1, stderr="Key was rejected by service"),
            "SecureBoot",
            "usePrecompiled",
        ),
    ],
)
async def test_a_host_tool_that_fails_is_told_with_reason_and_cure(
    world: Any, tool: str, answer: Completed, reason: str, cure: str
) -> None:
    world.simulated()
    world.kernel.broken[tool] = answer
    with pytest.raises(DriverError) as caught:
        await install(world.host)
    assert caught.value.reason == reason
    assert cure in caught.value.cure
    assert "modprobe -a nvidia" in caught.value.where
    del world.kernel.broken[tool]
    assert (await install(world.host))[1].action is Action.DONE


async def test_real_hardware_without_a_driver_is_told_what_to_do(world: Any) -> None:
    with pytest.raises(DriverError) as caught:
        await install(world.host)
    assert caught.value.reason == "NoInstaller"
    assert "distribution's packages" in caught.value.cure
    assert not world.host.exists(LOCK)


async def test_a_driver_in_use_is_not_taken_away(world: Any) -> None:
    world.simulated()
    await install(world.host)
    world.kernel.hold(1)
    with pytest.raises(DriverError) as caught:
        await uninstall(world.host)
    assert caught.value.reason == "ModuleInUse"
    assert world.host.exists("usr/lib64/libcuda.so.1")


async def test_one_installer_at_a_time(world: Any) -> None:
    world.simulated()
    with world.host.lock(LOCK), pytest.raises(Locked):
        await install(Host(world.root, world.kernel))
    assert (await install(world.host))[1].action is Action.DONE


class Died(BaseException):
    pass


async def test_dying_before_any_command_or_between_any_two_files_is_recovered_from(
    world: Any, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.simulated()
    before = tree(world.root)
    pristine = tmp_path_factory.mktemp("pristine") / "root"
    shutil.copytree(world.root, pristine, symlinks=True)
    await install(world.host)
    whole = tree(world.root)
    real_rename = os.rename
    for step in range(1, 40):
        root = tmp_path_factory.mktemp("run") / "root"
        shutil.copytree(pristine, root, symlinks=True)
        again = type(world)(root)
        left = step

        def die(*_: object) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                raise Died

        def rename(*args: Any, _die: Any = die, **kwargs: Any) -> None:
            _die()
            real_rename(*args, **kwargs)

        again.kernel.before = die
        died = False
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", rename)
            try:
                await install(again.host)
            except Died:
                died = True
        again.kernel.before = lambda _: None
        other = type(world)(tmp_path_factory.mktemp("undo") / "root")
        shutil.copytree(root, other.root, symlinks=True)
        await uninstall(other.host)
        assert tree(other.root) == before, step
        await install(again.host)
        assert tree(root) == whole, step
        if not died:
            assert step > 10
            return
    raise AssertionError("the installation never got through")


async def test_a_library_that_somebody_deleted_comes_back(world: Any) -> None:
    world.simulated()
    await install(world.host)
    (world.root / "usr/lib64/libcuda.so.535.161.08").unlink()
    assert (await install(world.host))[1].action is Action.DONE
    assert world.host.exists("usr/lib64/libcuda.so.1")


async def test_the_record_alone_is_enough_to_go_back(world: Any) -> None:
    world.simulated()
    before = tree(world.root)
    await install(world.host)
    for module in ("nvidia_modeset", "nvidia_uvm", "nvidia"):
        await world.kernel.run(Command(("rmmod", module)))
    revert(Host(world.root), "driver")
    assert tree(world.root) == before
