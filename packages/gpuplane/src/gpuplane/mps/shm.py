"""File systems in memory for what clients of MPS write on a node, bounded in bytes and files.

Clients and servers meet in the shared memory, which is /dev/shm to daemons and clients: it must not be the host's own.
Clients may also write the directory of a daemon's sockets. Its file system is bounded too, and no link in it is
followed: the daemon is root and writes there.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import stat
from pathlib import Path
from typing import Final

log = logging.getLogger("gpuplane.mps")

SHM: Final = "size=1g,nr_inodes=65536"
PIPE: Final = "size=16m,nr_inodes=1024,mode=755"
_NOSUID, _NODEV, _NOEXEC, _NOSYMFOLLOW, _BIND, _DETACH = 2, 4, 8, 256, 4096, 2  # as in <sys/mount.h>
_libc: Final = ctypes.CDLL(None, use_errno=True)


def mount_shm(directory: Path, host_root: Path, driver_root: Path) -> None:
    """Make `directory` a bounded tmpfs, and the /dev/shm of programs in `driver_root`.

    Where a process may not mount, clients share the file system that the directory is on; a warning says so.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if host_root == Path("/"):
        # Run by hand: a mount here would be for all processes, so clients get the host's own.
        if not os.path.ismount(directory):
            _mount("/dev/shm", directory, None, _BIND)
        return
    if not os.path.ismount(directory):
        _mount("shm", directory, "tmpfs", _NOSUID | _NODEV | _NOEXEC, SHM)
        directory.chmod(0o1777)
    target = driver_root / "dev/shm"
    if target.is_dir() and not os.path.samestat(target.stat(), directory.stat()):
        # In this pod's own mount namespace: the host's programs keep theirs.
        _mount(str(directory), target, None, _BIND)


def mount_pipe(directory: Path) -> None:
    """Make `directory` a bounded tmpfs, where a mount of this process is one of the host's too, and empty it.

    Elsewhere (by hand, or without propagation of mounts) clients would not find what is mounted: it is emptied only.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if not os.path.ismount(directory) and _is_shared(directory):
        flags = _NOSUID | _NODEV | _NOEXEC
        # NB: Linux before 5.10 does not know the flag.
        if not _mounted("mps", directory, "tmpfs", flags | _NOSYMFOLLOW, PIPE):
            _mount("mps", directory, "tmpfs", flags, PIPE)
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


def _is_shared(directory: Path) -> bool:
    """Return whether what is mounted at `directory` is seen outside of this mount namespace too.

    Source: proc_pid_mountinfo(5): the mount point is the fifth field, `shared:N` one of those before the hyphen.
    """
    place = os.path.realpath(directory)
    best, shared = "", False
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split(" - ", 1)[0].split()
        point = words[4].encode().decode("unicode_escape")
        # Of mounts on the same point the last one counts.
        if len(point) >= len(best) and (place == point or place.startswith(point.rstrip("/") + "/")):
            best, shared = point, any(word.startswith("shared:") for word in words[6:])
    return shared


def unmount(directory: Path) -> None:
    """Take the tmpfs away; containers that have it keep it until they end."""
    if os.path.ismount(directory) and _libc.umount2(os.fsencode(directory), _DETACH):
        log.warning("not unmounted path=%s: %s", directory, os.strerror(ctypes.get_errno()))


def _mount(source: str, target: Path, kind: str | None, flags: int, options: str = "") -> None:
    if not _mounted(source, target, kind, flags, options):
        log.warning("not mounted, going on without path=%s: %s", target, os.strerror(ctypes.get_errno()))


def _mounted(source: str, target: Path, kind: str | None, flags: int, options: str) -> bool:
    encoded = kind.encode() if kind else None
    data = options.encode() if options else None
    done = _libc.mount(os.fsencode(source), os.fsencode(target), encoded, ctypes.c_ulong(flags), data)
    return bool(done == 0)
