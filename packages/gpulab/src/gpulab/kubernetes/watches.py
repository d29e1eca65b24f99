"""The inotify instances that machines with containerd take.

The kernel grants each user 128 of them (`fs.inotify.max_user_instances`), and all machines of a cluster are root's.
When none is left, containerd does not start again, the kubelet follows no log, and operands cannot wait for files.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

# Measured with gpuplane installed: 61 with four machines, at most 18 for one. With cgroup v2 a shim takes one for each
# container.
OF_CONTROL_PLANE: Final = 8
OF_MACHINE: Final = 20
OF_CONTAINERS: Final = 26
LIMIT: Final = Path("/proc/sys/fs/inotify/max_user_instances")
CURE: Final = f"echo 1024 > {LIMIT}"
_libc = ctypes.CDLL(None)


def needed(machines: int, *, unified: bool) -> int:
    """Return the instances of a control plane and its machines; `unified`: with cgroup v2. Pure."""
    return OF_CONTROL_PLANE + machines * (OF_MACHINE + (OF_CONTAINERS if unified else 0))


def free(most: int) -> int:
    """Return how many instances this user can still get, counted up to `most`."""
    held: list[int] = []
    try:
        while len(held) < most:
            handle = _libc.inotify_init1(os.O_CLOEXEC)
            if handle < 0:
                break
            held.append(handle)
    finally:
        for handle in held:
            os.close(handle)
    return len(held)


def lacking(machines: int) -> str:
    """Return the cure where this user gets too few instances for so many machines, else empty."""
    wanted = needed(machines, unified=Path("/sys/fs/cgroup/cgroup.controllers").exists())
    left = free(wanted)
    return "" if left >= wanted else f"{CURE}: {left} inotify instances are free, {machines} machines need {wanted}"
