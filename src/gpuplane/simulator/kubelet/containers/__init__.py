"""Containers as real processes: their file system, their start, their end, their logs."""

from gpuplane.simulator.kubelet.containers.launcher import Launcher, StartFailed, find_mode, remove_tree
from gpuplane.simulator.kubelet.containers.modes import Isolation, Mode, fit
from gpuplane.simulator.kubelet.containers.records import Exit, Record, Records
from gpuplane.simulator.kubelet.containers.rootfs import ContainerSpec, Mount

__all__ = [
    "ContainerSpec",
    "Exit",
    "Isolation",
    "Launcher",
    "Mode",
    "Mount",
    "Record",
    "Records",
    "StartFailed",
    "find_mode",
    "fit",
    "remove_tree",
]
