"""Simulated machines: what they are, their file systems, the images they know, and light nodes."""

from gpuplane.simulator.nodes.images import Image, ImageMissing, find_image
from gpuplane.simulator.nodes.machine import DEMO_MACHINES, NodeMachine, machine, machines
from gpuplane.simulator.nodes.root import build_node, read_machine

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
]
