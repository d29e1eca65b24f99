"""Containers as real processes: their file system, their start, their end, their logs."""

from gpuplane.simulator.kubelet.containers.launcher import Isolation, Launcher, StartFailed
from gpuplane.simulator.kubelet.containers.records import Exit, Record, Records
from gpuplane.simulator.kubelet.containers.rootfs import ContainerSpec, Mount

__all__ = ["ContainerSpec", "Exit", "Isolation", "Launcher", "Mount", "Record", "Records", "StartFailed"]
