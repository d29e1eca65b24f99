"""Memory limits of containers, by control groups, where this user may make them.

Source: cgroups(7), and of the kernel's documentation cgroup-v1/memory and cgroup-v2. A group is made before its
container starts; the container's processes enter it themselves; the shim reads whether the kernel killed any for its
memory, and removes it.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Final

import msgspec

_PREFIX: Final = "tinykube"
_IN_USE: Final = "cgroup.procs"


class MemoryHierarchy(msgspec.Struct, frozen=True):
    """The directory below which groups are made; `unified` is that of version 2."""

    directory: Path
    unified: bool


def find_hierarchy(groups: str, mounts: str) -> MemoryHierarchy | None:
    """Return where groups with memory limits can be, from /proc/self/cgroup and /proc/self/mountinfo. Pure."""
    own = {names: path for line in groups.splitlines() for _, names, path in (line.split(":", 2),)}
    unified = None
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        (_, _, _, root, place, *_), (kind, _, options, *_) = left.split(), right.split()
        if kind == "cgroup" and "memory" in options.split(","):
            path = next((path for names, path in own.items() if "memory" in names.split(",")), "/")
            inside = path.removeprefix(root) if root != "/" else path
            return MemoryHierarchy(Path(place) / inside.lstrip("/"), unified=False)
        if kind == "cgroup2":
            # Only the root of the hierarchy may have both processes and groups with limits.
            unified = MemoryHierarchy(Path(place), unified=True)
    return unified


class MemoryGroups:
    """The groups of one node's containers. `why` says why there are none, "" where there are."""

    def __init__(self, node_root: Path, hierarchy: MemoryHierarchy | None) -> None:
        digest = hashlib.sha256(str(node_root).encode()).hexdigest()[:12]
        self._prefix = f"{_PREFIX}-{digest}-"
        self._hierarchy = hierarchy
        self.why = self._problem()

    @classmethod
    def of_this_process(cls, node_root: Path) -> MemoryGroups:
        """Return the groups that this process may make."""
        try:
            texts = [Path("/proc/self", name).read_text() for name in ("cgroup", "mountinfo")]
        except OSError:
            return cls(node_root, None)
        return cls(node_root, find_hierarchy(*texts))

    def _problem(self) -> str:
        if self._hierarchy is None:
            return "no control groups for memory are mounted"
        place = self._hierarchy.directory
        try:
            if self._hierarchy.unified and "memory" not in (place / "cgroup.subtree_control").read_text().split():
                return f"{place} has no limits of memory for its groups"
            for stale in place.glob(f"{self._prefix}*"):
                if not (stale / _IN_USE).read_text():
                    stale.rmdir()
            probe = place / f"{self._prefix}probe"
            probe.mkdir(exist_ok=True)
            probe.rmdir()
        except OSError as error:
            return f"{place}: {error.strerror}"
        return ""

    def make(self, container: str, limit_bytes: int) -> str:
        """Return the directory of a new group for a container. Raises OSError."""
        assert self._hierarchy is not None, "a machine without memory groups makes none"
        place = self._hierarchy.directory / f"{self._prefix}{container[:16]}"
        place.mkdir(exist_ok=True)
        self.limit(str(place), limit_bytes)
        if self._hierarchy.unified:
            (place / "memory.oom.group").write_text("1")
        return str(place)

    @staticmethod
    def remove(group: str) -> None:
        """Remove a group. Where the kernel still clears its processes away, the next kubelet of the node does."""
        with contextlib.suppress(OSError):
            Path(group).rmdir()

    def limit(self, group: str, limit_bytes: int) -> None:
        """Set the limit of a group, swap included. Raises OSError, such as where more is in use."""
        place, text = Path(group), str(limit_bytes)
        if self._hierarchy is not None and self._hierarchy.unified:
            (place / "memory.max").write_text(text)
            with contextlib.suppress(OSError):  # a kernel without swap
                (place / "memory.swap.max").write_text("0")
            return
        both = place / "memory.memsw.limit_in_bytes"
        files = [place / "memory.limit_in_bytes", *([both] if both.exists() else [])]
        if limit_bytes > int(files[0].read_text()):
            files.reverse()  # the limit with swap is never the lower
        for file in files:
            file.write_text(text)
