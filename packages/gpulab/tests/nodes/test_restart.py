"""The restart of a simulated machine: what is in memory is lost, what is on disk is there, and GPUs work again."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu import STATE_PATH
from simgpu.faults import Faults
from simgpu.machines import build_node, machine, restart_node
from simgpu.machines.programs import run_program

BARE, WITH_DRIVER = "t4-ubuntu22", "t4-ubuntu18"


def boot_id(root: Path) -> str:
    return (root / "proc/sys/kernel/random/boot_id").read_text()


def listing(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_a_bare_machine_restarts_as_it_was_bought(tmp_path: Path) -> None:
    built, root = build_node(tmp_path, "n", machine(BARE)), tmp_path / "root"
    first = boot_id(root)
    folder = root / f"lib/modules/{built.kernel}/kernel/drivers/video"
    folder.mkdir(parents=True)
    (folder / "nvidia.ko").write_text("name=nvidia\nversion=580.82.07\n")
    (root / "var/lib/data").write_text("kept")
    before = listing(root)
    run_program(root, "modprobe", "nvidia")
    (root / "run/lock").write_text("lost")
    (root / "run/driver").mkdir()
    (root / "run/driver/link").symlink_to("../lock")
    assert (root / "dev/nvidia0").exists()
    restart_node(tmp_path)
    assert listing(root) == before
    assert (root / "proc/modules").read_text() == ""
    second = boot_id(root)
    restart_node(tmp_path)
    assert len({first, second, boot_id(root)}) == 3
    run_program(root, "modprobe", "nvidia")
    assert (root / "dev/nvidia0").exists()


def test_a_machine_with_a_driver_loads_it_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    build_node(tmp_path, "n", machine(WITH_DRIVER))
    before, loaded = listing(root), (root / "proc/modules").read_text()
    assert "nvidia_uvm" in loaded
    restart_node(tmp_path)
    assert (listing(root), (root / "proc/modules").read_text()) == (before, loaded)


@pytest.mark.parametrize("name", [BARE, WITH_DRIVER])
def test_faults_that_a_reset_mends_are_gone(tmp_path: Path, name: str) -> None:
    build_node(tmp_path, "n", machine(name))
    state = tmp_path / "root" / STATE_PATH
    with Faults(state) as faults:
        faults.off_bus(0)
        faults.wrong_results(0)
    restart_node(tmp_path)
    with Faults(state) as faults:
        left = [getattr(faults._gpu(0), name) for name in ("lost", "wrong_results", "last_xid", "recovery_action")]
    assert left == [0, 0, 0, 0]
