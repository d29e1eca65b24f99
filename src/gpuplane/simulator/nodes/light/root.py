"""The file system of a light node: the part of a machine that operands read, in as few files as that takes.

Four thousand files a node would be twenty million for a large cluster, so what only a process would need (libraries,
tools, devices) is left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpuplane import names
from gpuplane.simulator.gpus import create_state, profile
from gpuplane.simulator.nodes.machine import NodeMachine
from gpuplane.simulator.nodes.root import tree, write_tree

_READ: Final = ("etc/", "proc/sys/kernel/osrelease", "proc/cpuinfo", "boot/config-", "sys/")
_NOT: Final = ("etc/hostname", "etc/machine-id", "sys/devices/system/cpu/")
_STATE_BYTES: Final = 4096  # only the head of the state is read without a driver library


def light_tree(machine: NodeMachine, name: str) -> dict[str, str]:
    """Path below the root -> text."""
    files = {
        path: text
        for path, text in tree(machine, name).items()
        if path.startswith(_READ) and not path.startswith(_NOT) and "subsystem" not in path
    }
    first = files["proc/cpuinfo"].split("\n\n", 1)[0]
    return {**files, "proc/cpuinfo": f"{first}\n\n", "proc/modules": ""}


def build_light_root(root: Path, name: str, machine: NodeMachine, template: dict[str, str], head: bytes) -> None:
    """Makes a light node's root unless it stands. `template` and `head` are shared by all nodes of one machine."""
    if (root / "proc/modules").is_file():
        return
    write_tree(root, {**template, "etc/hostname": f"{name}\n"})
    (root / "sys/module").mkdir(parents=True, exist_ok=True)
    (root / "etc/cdi").mkdir(exist_ok=True)
    if head:
        state = root / names.SIMGPU_STATE
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_bytes(head)


def state_head(machine: NodeMachine, scratch: Path) -> bytes:
    """The head of the GPUs' state, which tells the driver operand what hardware this is."""
    if not machine.gpus:
        return b""
    path = scratch / "state"
    create_state(path, profile(machine.gpus), machine.driver, "light")
    try:
        return path.read_bytes()[:_STATE_BYTES]
    finally:
        path.unlink()
