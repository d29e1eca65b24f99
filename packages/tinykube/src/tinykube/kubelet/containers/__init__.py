"""Containers as real processes: their file system, their start, their end, their logs."""

from tinykube.kubelet.containers.launcher import (
    MARK,
    Launcher,
    ProgramMissing,
    StartFailed,
    find_mode,
    remove_tree,
    run_as_root,
)
from tinykube.kubelet.containers.modes import Isolation, IsolationMode, fit
from tinykube.kubelet.containers.records import ContainerRecord, Exit, Records
from tinykube.kubelet.containers.rootfs import BindMount, ContainerSpec, Hardware
from tinykube.kubelet.containers.tmpfs import mount_memory

__all__ = [
    "MARK",
    "BindMount",
    "ContainerRecord",
    "ContainerSpec",
    "Exit",
    "Hardware",
    "Isolation",
    "IsolationMode",
    "Launcher",
    "ProgramMissing",
    "Records",
    "StartFailed",
    "find_mode",
    "fit",
    "mount_memory",
    "remove_tree",
    "run_as_root",
]
