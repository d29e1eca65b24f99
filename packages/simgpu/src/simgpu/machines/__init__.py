"""Simulated machines: what they are, and their file systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simgpu.machines.machine import DEMO_MACHINES, NodeMachine, machine, machines

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "DEMO_MACHINES",
    "NodeMachine",
    "build_node",
    "machine",
    "machines",
    "read_machine",
    "restart_node",
]


def build_node(directory: Path, name: str, machine: NodeMachine) -> NodeMachine:
    """Makes a node's directory, unless it stands; see `simgpu.machines.root`."""
    from simgpu.machines import root

    return root.build_node(directory, name, machine)


def restart_node(directory: Path) -> NodeMachine:
    """Leave a machine's directory as a boot does; see `simgpu.machines.restart`."""
    from simgpu.machines import restart

    return restart.restart_node(directory)


def read_machine(directory: Path) -> NodeMachine:
    """Read the machine in a node's directory. Raises Terminal when there is none."""
    from simgpu.machines import root

    return root.read_machine(directory)
