"""Finding a file below a root without ever leaving the root.

The root is another machine's file system (or the host's, mounted into a pod), so its symbolic links mean its own `/`:
`var/run -> /run` is `<root>/run`, and `../../..` stops at the root. The kernel has this as `openat2(RESOLVE_IN_ROOT)`,
but older seccomp profiles refuse that call; a walk over directory handles is the same and works everywhere.

Invariants:

- A component is opened relative to the handle of its parent and never through a link, so nothing that is exchanged
  during the walk leads outside: it ends in an error instead.
- Nothing is opened for reading here; handles are `O_PATH` and closed when the context ends.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40  # as the kernel's own limit


class Place(NamedTuple):
    """Where a path ends: a handle of its directory, its name in there, and its path from the root without links.

    `name` is "." when the path is the root itself.
    """

    directory: int
    name: str
    path: str


@contextmanager
def locate(root: Path, path: str, *, follow: bool = True, make: bool = False) -> Iterator[Place]:
    """Walk to `path` below `root`; the last component need not exist.

    Args:
        follow: also follow the last component when it is a link.
        make: create missing directories (mode 0755) on the way.

    Raises:
        FileNotFoundError, NotADirectoryError: a component on the way is missing or is a file.
        OSError: ELOOP after 40 links, and whatever the file system answers.
    """
    stack = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
    names: list[str] = []
    todo = list(reversed(path.split("/")))
    links = 0
    try:
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if names:
                    names.pop()
                    os.close(stack.pop())
                continue
            last = not any(rest not in ("", ".") for rest in todo)
            if last and not follow:
                yield Place(stack[-1], part, "/".join((*names, part)))
                return
            if not last and (handle := _open(part, stack[-1], make)) is not None:
                stack.append(handle)
                names.append(part)
                continue
            target = _link(part, stack[-1])
            if target is None:
                if last:
                    yield Place(stack[-1], part, "/".join((*names, part)))
                    return
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), "/".join((*names, part)))
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                names.clear()
                while len(stack) > 1:
                    os.close(stack.pop())
            todo.extend(reversed(target.split("/")))
        yield Place(stack[-1], ".", "/".join(names))
    finally:
        for handle in stack:
            os.close(handle)


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
    except FileExistsError:  # somebody else was faster, which is as good
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
