"""The restart of a simulated machine: what a boot leaves of its file system, and of its GPUs' faults.

Lost are the loaded modules, device nodes, mounts and all below `run`. The disk is as it was. The GPUs are reset, so
faults that a reset mends are gone; wrong results of broken hardware are mended too.

Source: what Linux keeps on a disk and what in memory; faults as in `simgpu.faults`.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Final

from simgpu import STATE_PATH, profile
from simgpu.faults import Faults
from simgpu.machines.driver import load_modules
from simgpu.machines.machine import NodeMachine
from simgpu.machines.root import BOOT_ID, read_machine, tree

_RUN: Final = ("systemd",)  # directories that a boot makes below run
_OF_MEMORY: Final = ("proc/modules", "proc/1/mounts", "proc/swaps")


def restart_node(directory: Path) -> NodeMachine:
    """Leave a machine's directory as a boot does; no process of it may run. Raises Terminal: no machine, or no driver.

    May be repeated: a restart that was cut off is done again.
    """
    machine = read_machine(directory)
    root = directory / "root"
    for module in (root / "proc/modules").read_text().splitlines():
        shutil.rmtree(root / "sys/module" / module.partition(" ")[0], ignore_errors=True)
    shutil.rmtree(root / "proc/driver", ignore_errors=True)
    (root / "proc/driver").mkdir()
    for node in (root / "dev").glob("nvidia*"):
        node.unlink()
    for mounted in (root / "run").iterdir():
        _remove(mounted)
    for name in _RUN:
        (root / "run" / name).mkdir()
    files = tree(machine, directory.name)
    for name in _OF_MEMORY:
        (root / name).write_text(files[name], encoding="utf-8")
    (root / BOOT_ID).parent.mkdir(parents=True, exist_ok=True)
    (root / BOOT_ID).write_text(f"{uuid.uuid4()}\n", encoding="utf-8")
    if machine.gpus:
        with Faults(root / STATE_PATH) as faults:
            for gpu in range(profile(machine.gpus).count):
                faults.clear(gpu)
    if machine.preinstalled:
        load_modules(root)
    return machine


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
