"""Control groups of containers: limits of memory and CPU, and shares of CPU, where this user may make such groups.

Source: cgroups(7), and of the kernel's documentation cgroup-v1/memory, scheduler/sched-bwc and cgroup-v2. Figures as a
kubelet with runc sets them.

Invariants:

- A container's groups are made before it starts. Its processes enter them as the last step before the program, so that
  a small share of CPU does not slow the start. The shim reads whether the kernel killed for memory, and removes them.
- All groups of a node are below one group, which weighs as much as the machine has CPUs, as `kubepods` does.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

CONTROLLERS: Final = ("memory", "cpu")
PERIOD_MICROSECONDS: Final = 100_000
_PREFIX: Final = "tinykube"
_PROCESSES: Final = "cgroup.procs"
_SHARES_OF_CPU: Final = 1024
_FEWEST_SHARES: Final = 2
_MOST_SHARES: Final = 262_144
_SHORTEST_QUOTA: Final = 1000
_SEEN_AT: Final = "/sys/fs/cgroup"
_TRIES: Final = 100
_STARTS_WITHIN_SECONDS: Final = 600.0  # a container has entered its groups by then


class GroupLimits(msgspec.Struct, frozen=True):
    """Limits of a container: memory in bytes, CPU in thousandths of one; None for no limit. `cpu_request` weighs."""

    memory_bytes: int | None = None
    cpu_limit: int | None = None
    cpu_request: int | None = None

    @property
    def shares(self) -> int:
        """Return the weight of its CPU, in shares of cgroup v1."""
        return cpu_shares(self.cpu_request or self.cpu_limit or 0)

    @property
    def quota(self) -> int | None:
        """Return how many microseconds of each period it may use of the CPUs."""
        return None if not self.cpu_limit else max(self.cpu_limit * PERIOD_MICROSECONDS // 1000, _SHORTEST_QUOTA)


def cpu_shares(milli: int) -> int:
    """Return the shares of cgroup v1 for a request in thousandths of a CPU."""
    return min(max(milli * _SHARES_OF_CPU // 1000, _FEWEST_SHARES), _MOST_SHARES)


def cpu_weight(shares: int) -> int:
    """Return the weight of cgroup v2 for shares of v1: 2 is 1, 1024 is 100, the most is 10000. Source: runc 1.3."""
    if shares <= _FEWEST_SHARES:
        return 1
    if shares >= _MOST_SHARES:
        return 10_000
    power = math.log2(shares)
    return math.ceil(10 ** ((power * power + 125 * power) / 612.0 - 7.0 / 34.0))


class GroupHierarchy(msgspec.Struct, frozen=True):
    """The directory below which groups of a controller are made; `unified` is that of version 2."""

    directory: Path
    unified: bool


def find_hierarchy(controller: str, groups: str, mounts: str) -> GroupHierarchy | None:
    """Return where groups of a controller can be, from /proc/self/cgroup and /proc/self/mountinfo. Pure."""
    own = {names: path for line in groups.splitlines() for _, names, path in (line.split(":", 2),)}
    unified = None
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        (_, _, _, root, place, *_), (kind, _, options, *_) = left.split(), right.split()
        if kind == "cgroup" and controller in options.split(","):
            path = next((path for names, path in own.items() if controller in names.split(",")), "/")
            inside = path.removeprefix(root) if root != "/" else path
            return GroupHierarchy(Path(place) / inside.lstrip("/"), unified=False)
        if kind == "cgroup2":
            # Only the root of the hierarchy may have both processes and groups with limits.
            unified = GroupHierarchy(Path(place), unified=True)
    return unified


class ControlGroups:
    """The groups of one node's containers.

    Attributes:
        why: for each controller why it limits nothing, "" where it does.
    """

    def __init__(self, node_root: Path, hierarchies: Mapping[str, GroupHierarchy | None]) -> None:
        digest = hashlib.sha256(str(node_root).encode()).hexdigest()[:12]
        self._name = f"{_PREFIX}-{digest}"
        self._hierarchies = {name: found for name, found in hierarchies.items() if found is not None}
        self.why = {name: self._problem(name, hierarchies.get(name)) for name in CONTROLLERS}

    @classmethod
    def of_this_process(cls, node_root: Path) -> ControlGroups:
        """Return the groups that this process may make."""
        try:
            texts = [Path("/proc/self", name).read_text() for name in ("cgroup", "mountinfo")]
        except OSError:
            return cls(node_root, {})
        return cls(node_root, {name: find_hierarchy(name, *texts) for name in CONTROLLERS})

    def _problem(self, controller: str, hierarchy: GroupHierarchy | None) -> str:
        if hierarchy is None:
            return f"no control groups for {controller} are mounted"
        place = hierarchy.directory
        try:
            if hierarchy.unified and controller not in (place / "cgroup.subtree_control").read_text().split():
                return f"{place} has no limits of {controller} for its groups"
            _sweep(place, self._name)
            _despite_sweeps(partial(self._make_node, controller, hierarchy))
        except OSError as error:
            return f"{place}: {error.strerror}"
        return ""

    def _make_node(self, controller: str, hierarchy: GroupHierarchy) -> None:
        """Make the group of the node, which another node's kubelet may have removed while it was empty."""
        node = hierarchy.directory / self._name
        node.mkdir(exist_ok=True)
        if hierarchy.unified:
            (node / "cgroup.subtree_control").write_text(f"+{controller}")
        if controller == "cpu":
            self._weigh(node, cpu_shares((os.cpu_count() or 1) * 1000), unified=hierarchy.unified)

    def _make_container(self, controller: str, hierarchy: GroupHierarchy, place: Path) -> None:
        if not place.parent.exists():
            self._make_node(controller, hierarchy)
        place.mkdir(exist_ok=True)

    def close(self) -> None:
        """Remove the node's own group, unless containers are left in it."""
        for hierarchy in self._hierarchies.values():
            with contextlib.suppress(OSError):
                (hierarchy.directory / self._name).rmdir()

    def make(self, container: str, limits: GroupLimits) -> dict[str, str]:
        """Return the directories of new groups for a container, by controller. Raises OSError."""
        groups = {}
        for controller in CONTROLLERS:
            if self.why[controller]:
                continue
            hierarchy = self._hierarchies[controller]
            place = hierarchy.directory / self._name / container[:16]
            _despite_sweeps(partial(self._make_container, controller, hierarchy, place))
            groups[controller] = str(place)
            if controller == "memory" and hierarchy.unified:
                (place / "memory.oom.group").write_text("1")
        self.set(groups, limits)
        return groups

    @staticmethod
    def remove(groups: Mapping[str, str]) -> None:
        """Remove groups. Where the kernel still clears processes away, the next kubelet of the node does."""
        for group in set(groups.values()):
            with contextlib.suppress(OSError):
                Path(group).rmdir()

    def set(self, groups: Mapping[str, str], limits: GroupLimits) -> None:
        """Set the limits of a container's groups. Raises OSError, such as where more memory is in use."""
        if "cpu" in groups:
            unified = self._hierarchies["cpu"].unified
            self._weigh(Path(groups["cpu"]), limits.shares, unified=unified)
            self._set_quota(Path(groups["cpu"]), limits.quota, unified=unified)
        if "memory" in groups and limits.memory_bytes is not None:
            self._set_memory(Path(groups["memory"]), limits.memory_bytes)

    @staticmethod
    def _weigh(group: Path, shares: int, *, unified: bool) -> None:
        if unified:
            (group / "cpu.weight").write_text(str(cpu_weight(shares)))
        else:
            (group / "cpu.shares").write_text(str(shares))

    @staticmethod
    def _set_quota(group: Path, quota: int | None, *, unified: bool) -> None:
        if unified:
            (group / "cpu.max").write_text(f"{'max' if quota is None else quota} {PERIOD_MICROSECONDS}")
            return
        file = group / "cpu.cfs_quota_us"
        if quota is not None or file.exists():  # a kernel without bandwidth control has no such file
            file.write_text(str(-1 if quota is None else quota))

    def _set_memory(self, group: Path, limit_bytes: int) -> None:
        """Set a limit of memory, swap included."""
        text = str(limit_bytes)
        if self._hierarchies["memory"].unified:
            (group / "memory.max").write_text(text)
            with contextlib.suppress(OSError):  # a kernel without swap
                (group / "memory.swap.max").write_text("0")
            return
        both = group / "memory.memsw.limit_in_bytes"
        files = [group / "memory.limit_in_bytes", *([both] if both.exists() else [])]
        if limit_bytes > int(files[0].read_text()):
            files.reverse()  # the limit with swap is never the lower
        for file in files:
            file.write_text(text)

    def memory_used(self, groups: Mapping[str, str]) -> int | None:
        """Return how many bytes a container uses; None where no group counts them."""
        if "memory" not in groups:
            return None
        unified = self._hierarchies["memory"].unified
        try:
            return int(Path(groups["memory"], "memory.current" if unified else "memory.usage_in_bytes").read_text())
        except OSError:
            return None

    def words(self, groups: Mapping[str, str]) -> list[str]:
        """The shim's words that show a container its own groups where a runtime mounts them, once /sys is there."""
        if not groups:
            return []
        words = ["detach", _SEEN_AT]
        for controller, place in groups.items():
            if self._hierarchies[controller].unified:
                return [*words, "bind", place, _SEEN_AT, "ro"]
        words += ["tmpfs", _SEEN_AT, "755"]
        for controller, place in groups.items():
            words += ["bind", place, f"{_SEEN_AT}/{controller}", "ro"]
        return [*words, "readonly", _SEEN_AT]


def _despite_sweeps(make: Callable[[], None]) -> None:
    """Make a group. Raises OSError.

    Every kubelet that starts removes the groups of nodes that are empty, perhaps between two steps of this.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            return make()
    return make()


def _sweep(place: Path, own: str) -> None:
    """Remove what kubelets left that were killed: empty groups of nodes, and of containers that start no more."""
    before = time.time() - _STARTS_WITHIN_SECONDS
    for node in list(place.glob(f"{_PREFIX}-*/")):
        with contextlib.suppress(OSError):  # another kubelet has removed it, or it has containers
            for group in list(node.glob("*/")):
                with contextlib.suppress(OSError):
                    if (node.name == own or group.stat().st_mtime < before) and not (group / _PROCESSES).read_text():
                        group.rmdir()
            node.rmdir()


def entering(groups: Mapping[str, str]) -> list[str]:
    """The shim's words by which a process enters groups."""
    return [word for place in sorted(set(groups.values())) for word in ("cgroup", place)]
