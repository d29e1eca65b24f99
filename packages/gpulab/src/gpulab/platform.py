"""Simulated machines as what a kubelet is built on."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpulab.images import IMAGES
from gpulab.nvidia_runtime import handler_devices
from simgpu import DEVICE_VARIABLE, PROGRAMS
from simgpu.machines import read_machine
from tinykube.kubelet.containers import Hardware
from tinykube.kubelet.platform import Platform

SIMULATED_HARDWARE: Final = Hardware(
    variable=DEVICE_VARIABLE,
    programs=str(PROGRAMS),
    # The simulated driver finds the state of its GPUs by it, see packages/simgpu/native/tools/gpus.c.
    sockets=("/run/nvidia-persistenced/socket",),
    state="var/lib/simgpu",
)


def simulated_platform(directory: Path) -> Platform:
    """Return the platform of the machine in a node's directory. Raises Terminal when there is no machine."""
    return Platform(
        machine=read_machine(directory),
        images=IMAGES,
        handler_devices=handler_devices,
        hardware=SIMULATED_HARDWARE,
    )
