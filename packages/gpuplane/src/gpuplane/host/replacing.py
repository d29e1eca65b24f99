"""Replaces a file whole or not at all, also when a link or a foreign file lies where the new bytes are written first.

The new bytes go to a temporary file, are flushed, and renamed over the old file, whose owner, mode, access control
lists and SELinux label they get.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat

from gpuplane.host.reading import READ, opened
from gpuplane.host.walk import ResolvedPath


def unlink(directory: int, name: str) -> None:
    """Delete a file or link.

    NB: the kernel refuses this on a read-only file system before it looks whether the file exists.
    """
    try:
        os.unlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.EROFS:
            os.stat(name, dir_fd=directory, follow_symlinks=False)
        raise


def temporary(name: str) -> str:
    return f".{name}.gpuplane"


_OF_CONTENT = ("security.ima", "security.evm")  # digests of the bytes, which the kernel makes


def replace(
    place: ResolvedPath, folder: int, data: bytes, old: os.stat_result | None, mode: int, durable: bool
) -> None:
    """Write in the directory `folder`, flush, rename. The name there is fixed, so that a crash leaves at most one file,
    which the next writer takes over; the lock on it keeps two writers apart."""
    fresh = temporary(place.name)
    handle = _open_locked(folder, fresh)
    try:
        os.truncate(handle, 0)
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        if old is not None and (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
            os.fchown(handle, old.st_uid, old.st_gid)
        os.fchmod(handle, stat.S_IMODE(old.st_mode) if old is not None else mode)
        if old is not None:
            _copy_attributes(place, handle)
        if durable:
            os.fsync(handle)
        os.rename(fresh, place.name, src_dir_fd=folder, dst_dir_fd=place.directory)
        if durable:
            flush(place)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=folder)
        raise
    finally:
        os.close(handle)


def _open_locked(directory: int, name: str) -> int:
    """Open the temporary file, as its only writer. A link or a file of more names in its place is deleted."""
    while True:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            handle = os.open(name, flags, 0o600, dir_fd=directory)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):  # a link, or a FIFO that no process reads
                raise
            unlink(directory, name)
            continue
        fcntl.flock(handle, fcntl.LOCK_EX)
        mine = os.fstat(handle)
        with contextlib.suppress(FileNotFoundError):
            there = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if there.st_ino == mine.st_ino:
                if stat.S_ISREG(mine.st_mode) and mine.st_nlink == 1:
                    return handle
                unlink(directory, name)
        os.close(handle)  # the writer before us renamed it while we waited


def _copy_attributes(place: ResolvedPath, handle: int) -> None:
    """Give the new file the extended attributes of the old one: access control lists, SELinux labels, people's own."""
    source = os.open(place.name, READ, dir_fd=place.directory)
    try:
        wanted = {name: os.getxattr(source, name) for name in os.listxattr(source) if name not in _OF_CONTENT}
        for name in os.listxattr(handle):
            if name not in wanted and name.startswith("system.posix_acl"):
                os.removexattr(handle, name)  # by a default of the directory, which the old file is older than
        for name, value in wanted.items():
            if name not in os.listxattr(handle) or os.getxattr(handle, name) != value:
                os.setxattr(handle, name, value)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP):
            raise
    finally:
        os.close(source)


def flush(place: ResolvedPath) -> None:
    with opened(ResolvedPath(place.directory, ".")) as handle:
        os.fsync(handle)
