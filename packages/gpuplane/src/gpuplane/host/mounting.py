"""Mounts and unmounts in this process's mount namespace, by system calls: operands ship no program for it.

Containers have a mount of ours only where it reaches the host's namespace: where the operand's pod passes mounts on
(`Bidirectional`), or where it is run by hand.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import Final

NOSUID, NODEV, NOEXEC, NOSYMFOLLOW, BIND = 2, 4, 8, 256, 4096  # as in <linux/mount.h>
_DETACH, _NOFOLLOW = 2, 8
_libc: Final = ctypes.CDLL(None, use_errno=True)


def mount(source: str | Path, target: Path, kind: str | None, flags: int, options: str = "") -> None:
    """Call mount(2). `kind` is a file system, None for a bind mount. Raises OSError."""
    encoded = kind.encode() if kind else None
    data = options.encode() if options else None
    if _libc.mount(os.fsencode(source), os.fsencode(target), encoded, ctypes.c_ulong(flags), data):
        raise _last_error(target)


def unmount(target: Path) -> None:
    """Take the topmost mount at a path away; processes that use it keep it until they end. Raises OSError."""
    if _libc.umount2(os.fsencode(target), _DETACH | _NOFOLLOW):
        raise _last_error(target)


def is_seen_by_host(path: Path, on_host: Path) -> bool:
    """Return whether process 1, in whose namespace a container runtime is, has the file system of `path` at `on_host`.

    Source: proc_pid_mountinfo(5). Anyone may read the file of any process.
    """
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}", os.fsencode(on_host)
    try:
        lines = Path("/proc/1/mountinfo").read_bytes().splitlines()
    except OSError:
        return False
    return any((fields[2].decode(), _decoded(fields[4])) == wanted for fields in map(bytes.split, lines))


def _decoded(path: bytes) -> bytes:
    """A path of mountinfo, in which the kernel writes blanks and backslashes as octal numbers."""
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), path)


def _last_error(target: Path) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), str(target))
