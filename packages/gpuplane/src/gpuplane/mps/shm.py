"""File systems in memory for what clients of MPS write on a node, bounded in bytes and files.

Clients and servers meet in the shared memory, which is /dev/shm to the daemons and to their clients: it must not be the
host's own. The sockets of a daemon are in a directory that its clients may write too; without a bound one of them could
fill the /run of the host.
"""

from __future__ import annotations

import ctypes
import logging
import os
from pathlib import Path
from typing import Final

log = logging.getLogger("gpuplane.mps")

SHM: Final = "size=1g,nr_inodes=65536"
PIPE: Final = "size=16m,nr_inodes=1024"
_NOSUID, _NODEV, _NOEXEC, _BIND, _DETACH = 2, 4, 8, 4096, 2  # as in <sys/mount.h>
_libc: Final = ctypes.CDLL(None, use_errno=True)


def mount_shm(directory: Path, host_root: Path, driver_root: Path) -> None:
    """Make `directory` a bounded tmpfs, and the /dev/shm of programs in `driver_root`.

    Where a process may not mount, clients share the file system that the directory is on; a warning says so.
    """
    if host_root == Path("/"):
        # Run by hand: a mount here would be for all processes, so clients get the host's own.
        directory.mkdir(parents=True, exist_ok=True)
        if not os.path.ismount(directory):
            _mount("/dev/shm", directory, None, _BIND)
        return
    _mount_tmpfs("shm", directory, SHM, 0o1777)
    _show(directory, driver_root / "dev/shm")


def mount_pipe(directory: Path, host_root: Path, driver_root: Path) -> None:
    """Make the `directory` of a daemon's sockets a bounded tmpfs, at the same place in `driver_root`."""
    if host_root == Path("/"):
        return
    _mount_tmpfs("mps-pipe", directory, PIPE, 0o755)
    _show(directory, driver_root / directory.relative_to(host_root))


def _mount_tmpfs(source: str, directory: Path, bounds: str, mode: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if not os.path.ismount(directory):
        _mount(source, directory, "tmpfs", _NOSUID | _NODEV | _NOEXEC, bounds)
        directory.chmod(mode)


def _show(directory: Path, target: Path) -> None:
    """Mount the directory at a place of the driver's root, where that has another one."""
    if target.is_dir() and not os.path.samestat(target.stat(), directory.stat()):
        # In this pod's own mount namespace: the host's programs keep theirs.
        _mount(str(directory), target, None, _BIND)


def unmount(directory: Path) -> None:
    """Take a tmpfs away; containers that have it keep it until they end."""
    if os.path.ismount(directory) and _libc.umount2(os.fsencode(directory), _DETACH):
        log.warning("not unmounted path=%s: %s", directory, os.strerror(ctypes.get_errno()))


def _mount(source: str, target: Path, kind: str | None, flags: int, options: str = "") -> None:
    encoded = kind.encode() if kind else None
    data = options.encode() if options else None
    if _libc.mount(os.fsencode(source), os.fsencode(target), encoded, ctypes.c_ulong(flags), data):
        log.warning("not mounted, going on without path=%s: %s", target, os.strerror(ctypes.get_errno()))
