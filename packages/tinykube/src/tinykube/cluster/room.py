"""The least that a cluster needs of its machine, so that `up` refuses at once a cluster that cannot fit.

The amounts are those of nodes that only register, as measured. Pods need more: a cluster that fits may still be slow.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from tinykube.cluster.spec import ClusterSpec

_MIB: Final = 1 << 20
_PROC: Final = Path("/proc")
_CGROUPS: Final = Path("/sys/fs/cgroup")


class RoomNeed(msgspec.Struct, frozen=True):
    """Amounts of one resource: of the cluster itself, of each simulated machine and of each light node."""

    resource: str
    cluster: int
    machine: int
    light_node: int
    says: str
    cure: str
    in_bytes: bool = True

    def total(self, spec: ClusterSpec) -> int:
        return self.total_of_others(spec) + spec.light_nodes * self.light_node

    def total_of_others(self, spec: ClusterSpec) -> int:
        """Return the amount without light nodes."""
        return self.cluster + len(spec.nodes) * self.machine


# Measured. Disk: 3.5 MiB for a machine; 50 files and 152 KiB for a light node, most of it directories. Private memory:
# 54 MiB for the control plane, 28 MiB for a machine's kubelet; for each light node 34 KiB in the API server and 14 KiB
# in the process of light nodes.
NEEDS: Final = (
    RoomNeed(
        *("disk", 2 * _MIB, 4 * _MIB, 152 << 10),  # with room for logs
        says="the disk is too full",
        cure="free some space, or set {home} to another directory",
    ),
    RoomNeed(
        *("files", 50, 200, 50),
        says="the file system has too few free inodes",
        cure="delete files, or set {home} to another directory",
        in_bytes=False,
    ),
    RoomNeed(
        *("memory", 54 * _MIB, 28 * _MIB, 48 << 10),
        says="there is too little memory",
        cure="fewer machines, or end other programs",
    ),
)


class MachineRoom(msgspec.Struct, frozen=True, kw_only=True):
    """The free amounts of this machine; None where the system has no such limit."""

    disk: int | None = None
    files: int | None = None
    memory: int | None = None


class RoomShortage(msgspec.Struct, frozen=True):
    """A reason why a cluster does not fit, with place and cure."""

    what: str
    where: str
    cure: str


def shortage(room: MachineRoom, spec: ClusterSpec, directory: Path, home_variable: str) -> RoomShortage | None:
    """Return why a cluster does not fit, by the resource that is shortest; None if it fits. Pure.

    Args:
        directory: is to hold the cluster's files.
        home_variable: the environment variable that names another one.
    """
    free = {need: amount for need in NEEDS if (amount := getattr(room, need.resource)) is not None}
    short = [need for need, amount in free.items() if need.total(spec) > amount]
    if not short:
        return None
    worst = max(short, key=lambda need: need.total(spec) / max(1, free[need]))
    left, needed = (f"{size >> 20} MiB" if worst.in_bytes else str(size) for size in (free[worst], worst.total(spec)))
    fitting = min((amount - need.total_of_others(spec)) // need.light_node for need, amount in free.items())
    cure = worst.cure.format(home=home_variable)
    if spec.light_nodes and fitting > 0:
        cure = f"--light-nodes {fitting} at most, or {cure}"
    where = str(directory) if worst.resource != "memory" else "this machine"
    return RoomShortage(f"{worst.says}: {left} are free, this cluster needs {needed}", where, cure)


def read_room(directory: Path) -> MachineRoom:
    """Return what is free for a cluster in a directory, which need not exist."""
    disk = os.statvfs(next(one for one in (directory, *directory.parents) if one.exists()))
    return MachineRoom(
        disk=disk.f_bavail * disk.f_frsize,
        files=disk.f_favail if disk.f_files else None,  # 0 where a file system makes files as it needs them: Btrfs
        memory=free_memory(),
    )


def free_memory(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int | None:
    """Return the bytes of memory and swap that this process can still get; None where the system does not report it.

    Limits of control groups count, those of version 2 only. Formats: proc_meminfo(5), the kernel's cgroup-v2.
    """
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError:
        return None
    known = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines) if rest}
    if "MemAvailable" not in known:
        return None
    return min((known["MemAvailable"] + known.get("SwapFree", 0), *_free_in_groups(proc, cgroups)))


def _free_in_groups(proc: Path, cgroups: Path) -> Iterator[int]:
    """Yield the free memory of each control group of this process that has a limit."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if own is None:
        return
    group = cgroups / own
    for place in (group, *group.parents):
        if place.is_relative_to(cgroups):
            with contextlib.suppress(OSError, ValueError):  # no limit: "max", or the files of the root, which has none
                limit, used = (int((place / f"memory.{name}").read_text()) for name in ("max", "current"))
                yield max(0, limit - used + _cached(place))


def _cached(group: Path) -> int:
    """Return the bytes of files that the kernel can drop from memory."""
    rows = (line.split() for line in (group / "memory.stat").read_text().splitlines())
    return next((int(number) for name, number in rows if name == "inactive_file"), 0)
