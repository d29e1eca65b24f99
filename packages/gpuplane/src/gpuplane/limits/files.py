"""Files of limits: made whole, read through descriptors, never through a link."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from ctypes import sizeof
from pathlib import Path
from typing import Final

from gpuplane.limits import page
from kubekit.errors import Terminal

_BLOCK: Final = 512  # the unit of st_blocks
_OVERHEAD: Final = 64 << 10  # what a file system may use for a file besides its content


def read_page(path: Path, kind: type[page.Page]) -> page.Page:
    """Raises FileNotFoundError, and Terminal for a file that is too short."""
    with opened(path, os.O_RDONLY) as handle:
        data = os.pread(handle, sizeof(kind), 0)
    if len(data) < sizeof(kind):
        raise Terminal("it is too short", where=str(path), cure="delete it; it is made again")
    return kind.from_buffer_copy(data)


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """Open a file that containers may have open too.

    Raises:
        Terminal: a process has a lease on it (`fcntl` F_SETLEASE), and to wait for it would take 45 s each time; or
            its file system has no room for what the caller writes.
    """
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except BlockingIOError:
        raise Terminal("a process has a lease on it", where=str(path), cure="try again in a minute") from None
    try:
        yield handle
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise Terminal("there is no room for it", where=str(path), cure="it is mended within a second") from error
    finally:
        os.close(handle)


def has_size(handle: int, size: int) -> bool:
    """Return whether a file has a size in bytes and no blocks behind its end."""
    found = os.fstat(handle)
    return found.st_size == size and found.st_blocks * _BLOCK <= size + _OVERHEAD


def drop_attributes(handle: int) -> bool:
    """Take away the attributes that users may give a file. Returns whether there were any."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = [name for name in os.listxattr(handle) if name.startswith("user.")]
    for name in names:
        with contextlib.suppress(OSError):
            os.removexattr(handle, name)
    return bool(names)


def make_dirs(path: Path) -> None:
    """As mkdir -p, with the permissions that containers of any user need, whatever the umask."""
    missing = [place for place in (path, *path.parents) if not place.exists()]
    for place in reversed(missing):
        with contextlib.suppress(FileExistsError):
            place.mkdir(mode=0o755)
            place.chmod(0o755)


def put(path: Path, data: bytes, mode: int) -> None:
    """Write a whole file: under a temporary name in the same directory, then renamed."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # Zeros at the end are left a hole, of which the usage page consists at first.
        os.write(handle, data.rstrip(b"\0"))
        os.truncate(handle, len(data))
        os.fchmod(handle, mode)
    finally:
        os.close(handle)
    fresh.rename(path)
