"""Mounts and unmounts in this process's mount namespace, by system calls: operands ship no program for it."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

NOSUID, NODEV, NOEXEC, BIND = 2, 4, 8, 4096  # as in <sys/mount.h>
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


def _last_error(target: Path) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), str(target))
