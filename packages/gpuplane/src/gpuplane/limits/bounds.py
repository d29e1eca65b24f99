"""A hard bound for the one file of a share that its container may write.

The file lies on a tmpfs that has room for it and nothing else: no call of a container can take more of the node. The
file is mounted over the file of the same name in the share's directory, so that paths are the same with and without
the bound. The mount outlives this process. A restart finds it again; a reboot leaves the file below, which is an empty
page.

Invariant: processes never use the file below while another one lies over it. So a mount that the container runtime
does not see is taken away again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

from gpuplane.host.mounting import BIND, NODEV, NOEXEC, NOSUID, is_seen_by_host, mount, unmount
from gpuplane.limits.files import opened

# Two are the directory and the file. Linux 6.6 and newer count attributes as inodes of 1 KiB: SELinux's label needs 1.
_INODES: Final = 4
_LABEL: Final = "security.selinux"
_UNSEEN: Final = "the container runtime does not see mounts of this process"


def is_bounded(file: Path, size: int) -> bool:
    """Return whether the file system of a file has no more room than `size` bytes in whole blocks."""
    room = os.statvfs(file)
    return room.f_blocks * room.f_frsize < size + room.f_frsize


def bound(file: Path, size: int, stage: Path, on_host: Path) -> str:
    """Put a file on a file system of its own size, with the content and the mode that it has.

    Args:
        size: in bytes; what of the file is behind that is left out.
        stage: a directory that does not exist yet, for the time of the call.
        on_host: the file's path as the container runtime has it.

    Returns:
        Why it is not bounded, in which case nothing has changed; empty when it is.
    """
    try:
        stage.mkdir(mode=0o700)
        try:
            mount("gpuplane", stage, "tmpfs", NOSUID | NODEV | NOEXEC, f"size={size},nr_inodes={_INODES},mode=0700")
            _copy(file, stage / file.name, size)
            mount(stage / file.name, file, None, BIND)
        finally:
            remove_tree(stage)
    except OSError as error:
        return error.strerror or str(error)
    if is_seen_by_host(file, on_host):
        return ""
    unmount(file)
    return _UNSEEN


def remove_tree(place: Path) -> None:
    """Remove a directory of a share with what is mounted on it and on its files; what cannot go stays."""
    with contextlib.suppress(OSError):
        for path in (place, *place.iterdir()):
            _unmount_all(path)
    shutil.rmtree(place, ignore_errors=True)


def _unmount_all(path: Path) -> None:
    with contextlib.suppress(OSError):  # EINVAL when nothing is mounted there, EPERM for users
        while True:
            unmount(path)


def _copy(file: Path, target: Path, size: int) -> None:
    with opened(file, os.O_RDONLY) as old, opened(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as new:
        # Zeros stay a hole: memory is then counted to the containers that fill it.
        os.write(new, os.pread(old, size, 0).rstrip(b"\0"))
        os.ftruncate(new, size)
        os.fchmod(new, os.fstat(old).st_mode & 0o777)
        with contextlib.suppress(OSError):  # no SELinux here
            os.setxattr(new, _LABEL, os.getxattr(old, _LABEL))
