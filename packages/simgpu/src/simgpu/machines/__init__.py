"""Simulated machines: what they are, their file systems, the images they know, and light nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simgpu.machines.machine import DEMO_MACHINES, NodeMachine, machine, machines
from tinykube.images import Image, ImageMissing, find_image

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

__all__ = [
    "DEMO_MACHINES",
    "Image",
    "ImageMissing",
    "NodeMachine",
    "build_node",
    "find_image",
    "machine",
    "machines",
    "read_machine",
    "run",
]


def build_node(directory: Path, name: str, machine: NodeMachine) -> NodeMachine:
    """Makes a node's directory, unless it stands; see `simgpu.machines.root`."""
    from simgpu.machines import root

    return root.build_node(directory, name, machine)


def read_machine(directory: Path) -> NodeMachine:
    """Read the machine in a node's directory. Raises Terminal when there is none."""
    from simgpu.machines import root

    return root.read_machine(directory)


async def run(options: Namespace) -> None:
    """`gpuplane run light-nodes`; see `gpulab.light`."""
    from gpulab.light import run as run_light

    await run_light(options)
