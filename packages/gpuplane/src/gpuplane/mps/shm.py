"""The shared memory of MPS: a tmpfs on the host, bounded in bytes and files, which is /dev/shm to daemons and clients.

Clients and servers meet there, and containers that are clients have no other: it must not be the host's own.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from gpuplane.host.mounting import BIND, NODEV, NOEXEC, NOSUID, mount, unmount

log = logging.getLogger("gpuplane.mps")

SHM: Final = "size=1g,nr_inodes=65536"


def mount_shm(directory: Path, host_root: Path, driver_root: Path) -> None:
    """Make `directory` a bounded tmpfs, and the /dev/shm of programs in `driver_root`.

    Where a process may not mount, clients share the file system that the directory is on; a warning says so.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if host_root == Path("/"):
        # Run by hand: a mount here would be for all processes, so clients get the host's own.
        if not os.path.ismount(directory):
            _mount("/dev/shm", directory, None, BIND)
        return
    if not os.path.ismount(directory):
        _mount("shm", directory, "tmpfs", NOSUID | NODEV | NOEXEC, SHM)
        directory.chmod(0o1777)
    target = driver_root / "dev/shm"
    if target.is_dir() and not os.path.samestat(target.stat(), directory.stat()):
        # In this pod's own mount namespace: the host's programs keep theirs.
        _mount(str(directory), target, None, BIND)


def unmount_shm(directory: Path) -> None:
    """Take the tmpfs away; containers that have it keep it until they end."""
    if not os.path.ismount(directory):
        return
    try:
        unmount(directory)
    except OSError as error:
        log.warning("not unmounted path=%s: %s", directory, error.strerror)


def _mount(source: str, target: Path, kind: str | None, flags: int, options: str = "") -> None:
    try:
        mount(source, target, kind, flags, options)
    except OSError as error:
        log.warning("not mounted, going on without path=%s: %s", target, error.strerror)
