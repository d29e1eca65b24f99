"""File systems in memory on the machine, for volumes of a pod: they last as long as the pod, not as its containers.

They are mounts of the machine, as those of every kubelet are. So a directory that is removed loses them first, also
when the kubelet that made them was killed.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import Final

_MNT_DETACH: Final = 2
_KERNEL_WITH_NOSWAP: Final = (6, 4)


def mount_memory(directory: Path, size_bytes: int) -> None:
    """Mount a tmpfs of this size on a directory, unless one is there; 0 has the kernel's own limit. Raises OSError."""
    if directory.is_mount():
        return
    options = [f"size={size_bytes}"] if size_bytes > 0 else []
    if _kernel() >= _KERNEL_WITH_NOSWAP:
        options.append("noswap")
    _call("mount", b"tmpfs", os.fsencode(directory), b"tmpfs", 0, ",".join(options).encode(), where=directory)


def unmount_below(directory: Path) -> None:
    """Unmount what is mounted at or below a directory, the deepest first. Raises OSError."""
    top = str(directory.resolve())
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    places = [_spelled(line.split(" ")[4]) for line in lines]
    for place in reversed([one for one in places if one == top or one.startswith(f"{top}/")]):
        _call("umount2", os.fsencode(place), _MNT_DETACH, where=place)


def _spelled(place: str) -> str:
    """Return a path of mountinfo with its blanks, which stand there as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), place)


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])


def _call(name: str, *words: bytes | int, where: Path | str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*words) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}", str(where))
