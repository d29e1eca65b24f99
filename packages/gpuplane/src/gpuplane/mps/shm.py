"""Mounts for MPS on a node: bounded file systems in memory for what clients write, and the MPS root.

Clients and servers meet in the shared memory, which is /dev/shm to daemons and clients: it must not be the host's own.
Clients may also write the directory of a daemon's sockets. Its file system is bounded too, and no link in it is
followed: the daemon is root and writes there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from pathlib import Path
from typing import Final

from gpuplane.host.mounting import BIND, NODEV, NOEXEC, NOSUID, NOSYMFOLLOW, is_seen_by_host, mount
from gpuplane.host.mounting import unmount as take_away

log = logging.getLogger("gpuplane.mps")

SHM: Final = "size=1g,nr_inodes=65536"
PIPE: Final = "size=16m,nr_inodes=1024,mode=755"


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


def mount_root(root: Path, in_driver_root: Path) -> bool:
    """Make the MPS root what the driver's programs find at its path; return whether that took a mount.

    The mount is in this pod's own mount namespace.

    Programs of a driver with a root of its own find the host's /run/nvidia there, and no other place of the host.
    """
    root.mkdir(parents=True, exist_ok=True)
    try:
        in_driver_root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        log.warning("no place for the MPS root path=%s: %s", in_driver_root, error.strerror)
        return False
    if os.path.samestat(root.stat(), in_driver_root.stat()):
        return False
    _mount(str(root), in_driver_root, None, BIND)
    return os.path.samestat(root.stat(), in_driver_root.stat())


def mount_pipe(directory: Path, on_host: Path) -> None:
    """Make `directory` a bounded tmpfs, and empty it.

    Where clients, which have it by its path on the host, would not find what is mounted, it is emptied only.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if not os.path.ismount(directory):
        flags = NOSUID | NODEV | NOEXEC
        try:
            mount("mps", directory, "tmpfs", flags | NOSYMFOLLOW, PIPE)
        except OSError:  # Linux before 5.10 does not know the flag
            _mount("mps", directory, "tmpfs", flags, PIPE)
        if os.path.ismount(directory) and not is_seen_by_host(directory, on_host):
            log.warning("sockets not bounded, mounts do not reach the host path=%s", directory)
            unmount(directory)
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for entry in os.listdir(handle):  # noqa: PTH208 - a handle is no path
            _remove(entry, handle)
    finally:
        os.close(handle)


def _remove(name: str, directory: int) -> None:
    """Delete what clients left, links themselves and not what they lead to."""
    import shutil  # late: 2 MB, and only where a client left a directory

    if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        shutil.rmtree(name, dir_fd=directory, ignore_errors=True)
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def unmount(directory: Path) -> None:
    """Take a tmpfs away; containers that have it keep it until they end."""
    if os.path.ismount(directory):
        unmount_root(directory)


def unmount_root(directory: Path) -> None:
    """Take away what `mount_root` has mounted. NB: `ismount` does not see a directory of the same file system."""
    try:
        take_away(directory)
    except OSError as error:
        log.warning("not unmounted path=%s: %s", directory, error.strerror)


def _mount(source: str, target: Path, kind: str | None, flags: int, options: str = "") -> None:
    try:
        mount(source, target, kind, flags, options)
    except OSError as error:
        log.warning("not mounted, going on without path=%s: %s", target, error.strerror)
