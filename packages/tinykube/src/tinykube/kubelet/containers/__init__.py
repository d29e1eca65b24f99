"""Containers as real processes: their file system, their start, their end, their logs."""

from tinykube.kubelet.containers.launcher import Launcher, StartFailed, find_mode, remove_tree
from tinykube.kubelet.containers.modes import Isolation, Mode, fit
from tinykube.kubelet.containers.records import Exit, Record, Records
from tinykube.kubelet.containers.rootfs import ContainerSpec, Hardware, Mount

__all__ = [
    "ContainerSpec",
    "Exit",
    "Hardware",
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
