"""Measurements of a node: plain data. CPU is in nanoseconds since a start, memory in bytes, time since the epoch."""

from __future__ import annotations

import msgspec


class ProcessesUse(msgspec.Struct, frozen=True):
    """The use of a group of processes.

    Args:
        cpu_ns: CPU time that they and their ended children have used.
        working_set: memory that they need; of shared pages their part, where that is known.
        rss: resident memory, shared pages counted for each process.
        page_faults: all, and those that read from a disk.
        processes: how many run.
    """

    cpu_ns: int = 0
    working_set: int = 0
    rss: int = 0
    page_faults: tuple[int, int] = (0, 0)
    processes: int = 0

    def __add__(self, other: ProcessesUse) -> ProcessesUse:
        return ProcessesUse(
            self.cpu_ns + other.cpu_ns,
            self.working_set + other.working_set,
            self.rss + other.rss,
            (self.page_faults[0] + other.page_faults[0], self.page_faults[1] + other.page_faults[1]),
            self.processes + other.processes,
        )


class ContainerUsage(msgspec.Struct, frozen=True):
    """A running container. `cpu_rate` is in billionths of a core; None where there is no earlier measurement."""

    id: str
    name: str
    started: float
    use: ProcessesUse
    limit: int | None = None  # of memory
    cpu_rate: int | None = None


class PodUsage(msgspec.Struct, frozen=True):
    """A pod with running containers. `use.cpu_ns` has also that of its ended containers, as far as it was measured."""

    namespace: str
    name: str
    uid: str
    started: float
    containers: tuple[ContainerUsage, ...]
    use: ProcessesUse
    cpu_rate: int | None = None


class FileSystemUse(msgspec.Struct, frozen=True):
    """The file system of the node's directory, in bytes and inodes."""

    available: int
    capacity: int
    inodes_free: int
    inodes: int


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """A node: its kubelet and its containers. The machine below it also runs other nodes and the control plane."""

    name: str
    time: float
    started: float
    memory_bytes: int
    use: ProcessesUse
    kubelet: ProcessesUse
    pods: tuple[PodUsage, ...] = ()
    file_system: FileSystemUse | None = None
    cpu_rate: int | None = None
    kubelet_rate: int | None = None
