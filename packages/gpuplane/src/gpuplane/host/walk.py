"""Finding a file below a root without ever leaving the root.

The root is another machine's file system (or the host's, mounted into a pod), so its symbolic links mean its own `/`:
`var/run -> /run` is `<root>/run`, and `../../..` stops at the root. The kernel has this as `openat2(RESOLVE_IN_ROOT)`,
one call for the whole way; where an older kernel or a seccomp profile refuses that call, and where directories have to
be made on the way, the same is walked component by component over directory handles.

Invariants:

- No component is ever opened through a link by the kernel's own rules, so nothing that is exchanged on the way leads
  outside: it ends in an error instead.
- Nothing is opened for reading here; handles are `O_PATH`.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_HANDLE = _DIRECTORY | os.O_NOFOLLOW
_MAX_LINKS = 40  # as the kernel's own limit

_OPENAT2 = 437  # the same number on every architecture: openat2(2)
_RESOLVE_IN_ROOT = 0x10
_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW = _OpenHow(_DIRECTORY, 0, _RESOLVE_IN_ROOT)


class ResolvedPath(NamedTuple):
    """The end of a path: a handle of its directory, and its name in there; "." when the path is the root itself.

    The handle is the caller's to close.
    """

    directory: int
    name: str


def find(root: Path, path: str, *, follow: bool = True, make: bool = False, trusted: str = "") -> ResolvedPath:
    """Walk to `path` below `root`; the last component need not exist.

    Args:
        follow: also follow the last component when it is a link.
        make: create missing directories (mode 0755) on the way.
        trusted: a folder above `path`; below it no link is followed. Empty for links wherever they lie.

    Raises:
        FileNotFoundError, NotADirectoryError: a component on the way is missing or is a file.
        OSError: ELOOP after 40 links, or for a link below `trusted`, and whatever the file system answers.
    """
    if trusted:
        return _without_links(root, path, trusted, make)
    place = _at_once(root, path, make)
    if place is None:
        return _walk(root, path, follow, make)[0]
    if follow and _link(place.name, place.directory) is not None:
        os.close(place.directory)
        return _walk(root, path, follow, make)[0]
    return place


def _without_links(root: Path, path: str, trusted: str, make: bool) -> ResolvedPath:
    """As `find`, with each component below `trusted` opened by itself: a link ends in ELOOP, also a fresh one."""
    rest = _parts(path)[: -len(_parts(trusted))]
    if not rest or ".." in rest:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    handle = find(root, f"{trusted}/{rest[-1]}", follow=False, make=make).directory
    try:
        while len(rest) > 1:
            part = rest.pop()
            below = _open(part, handle, make)
            if below is None:
                linked = _link(part, handle) is not None
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path) if linked else NotADirectoryError(path)
            os.close(handle)
            handle = below
        return ResolvedPath(handle, rest[0])
    except BaseException:
        os.close(handle)
        raise


def resolve(root: Path, path: str) -> str:
    """The path from the root, without links and `..`, of what is at `path`; raises as `find`."""
    place, names = _walk(root, path, True, False)
    os.close(place.directory)
    return "/".join(names)


@contextmanager
def locate(root: Path, path: str, *, follow: bool = True, make: bool = False) -> Iterator[ResolvedPath]:
    """As `find`, and the handle is closed at the end of the context."""
    place = find(root, path, follow=follow, make=make)
    try:
        yield place
    finally:
        os.close(place.directory)


def _at_once(root: Path, path: str, make: bool) -> ResolvedPath | None:
    """The place by one call of the kernel; None when it cannot be had so."""
    above, _, name = path.rstrip("/").rpartition("/")
    if name in ("", ".", ".."):
        return None
    base = os.open(root, _DIRECTORY)
    if not above.strip("/"):
        return ResolvedPath(base, name)
    try:
        handle = _libc.syscall(_OPENAT2, base, os.fsencode(above.lstrip("/")), ctypes.byref(_HOW), ctypes.sizeof(_HOW))
        if handle < 0 and not make and (code := ctypes.get_errno()) in (errno.ENOENT, errno.ENOTDIR):
            raise OSError(code, os.strerror(code), path)
    finally:
        os.close(base)
    return ResolvedPath(handle, name) if handle >= 0 else None


def _walk(root: Path, path: str, follow: bool, make: bool) -> tuple[ResolvedPath, list[str]]:
    """As `find`, one component at a time; also the names on the way, and of the end."""
    stack = [os.open(root, _DIRECTORY)]
    names: list[str] = []
    todo = _parts(path)
    links = 0
    try:
        while todo:
            part = todo.pop()
            if part == "..":
                if names:
                    names.pop()
                    os.close(stack.pop())
                continue
            if not todo and not follow:
                return ResolvedPath(stack.pop(), part), [*names, part]
            if todo and (handle := _open(part, stack[-1], make)) is not None:
                stack.append(handle)
                names.append(part)
                continue
            target = _link(part, stack[-1])
            if target is None:
                if not todo:
                    return ResolvedPath(stack.pop(), part), [*names, part]
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), "/".join((*names, part)))
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                names.clear()
                while len(stack) > 1:
                    os.close(stack.pop())
            todo += _parts(target)
        return ResolvedPath(stack.pop(), "."), names
    finally:
        for handle in stack:
            os.close(handle)


def trace(root: Path, path: str, tell: Callable[[int, str], None]) -> None:
    """Walk to `path` and tell what decides where it leads, each as (handle of its directory, name).

    `tell` gets the links on the way, the last component, and the first that is missing. Each is looked at again
    afterwards, so that a watch which `tell` sets misses no change. Raises OSError, but not for what is missing or leads
    round in a circle.
    """
    stack = [os.open(root, _DIRECTORY)]
    todo = _parts(path)
    links = 0
    try:
        while todo:
            part = todo.pop()
            if part == "..":
                if len(stack) > 1:
                    os.close(stack.pop())
                continue
            try:
                handle = _open(part, stack[-1], False)
            except FileNotFoundError:
                tell(stack[-1], part)
                try:
                    handle = _open(part, stack[-1], False)
                except FileNotFoundError:
                    return
            if handle is None or not todo:
                tell(stack[-1], part)
            if handle is not None:
                stack.append(handle)
                continue
            target = _link(part, stack[-1])
            links += 1
            if target is None or links > _MAX_LINKS:
                return  # all links of a circle have been yielded by now
            while target.startswith("/") and len(stack) > 1:
                os.close(stack.pop())
            todo += _parts(target)
    finally:
        for handle in stack:
            os.close(handle)


def _parts(path: str) -> list[str]:
    """The components that count, last first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _open(name: str, directory: int, make: bool) -> int | None:
    """A handle of the directory `name`; None when it is something else, perhaps a link."""
    try:
        return os.open(name, _HANDLE, dir_fd=directory)
    except NotADirectoryError:
        return None
    except FileNotFoundError:
        if not make:
            raise
    try:
        os.mkdir(name, 0o755, dir_fd=directory)
    except FileExistsError:  # another process was faster, with the same result
        return None if _link(name, directory) is not None else os.open(name, _HANDLE, dir_fd=directory)
    return os.open(name, _HANDLE, dir_fd=directory)


def _link(name: str, directory: int) -> str | None:
    """The target of a link; None for anything else, also for what does not exist."""
    try:
        return os.readlink(name, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise
