"""Reads a host's files, seen through its root directory. No path leads out of the root (see `gpuplane.host.walk`)."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuplane.host.errors import ABSENT, CURES, HostError, NotPermitted
from gpuplane.host.walk import ResolvedPath, find, resolve

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # NONBLOCK: a FIFO must not hold us
LONGEST_READ = 256 << 20  # bytes of a file that is read whole; a driver's largest library has 100 MB


class HostReader:
    """Reads the files below `root`. Paths are relative to the root, with or without a `/`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, path: str, *, limit: int | None = None) -> bytes | None:
        """The bytes of a regular file, the first `limit` of them; None when there is none."""
        try:
            with self.at(path) as place:
                return read_in(place.directory, place.name, limit)
        except ABSENT:
            return None

    def load(self, path: str) -> tuple[bytes, os.stat_result] | None:
        """The bytes of a regular file and what it is, seen at one moment; None when there is none."""
        try:
            with self.at(path) as place:
                handle = os.open(place.name, READ, dir_fd=place.directory)
                try:
                    return content(handle), os.fstat(handle)
                finally:
                    os.close(handle)
        except ABSENT:
            return None

    def read_text(self, path: str) -> str | None:
        """As `read`, decoded leniently and without white space around."""
        data = self.read(path)
        return None if data is None else data.decode(errors="replace").strip()

    def read_files(self, directory: str, wanted: Sequence[str]) -> dict[str, str]:
        """Those of the `wanted` files of one directory that can be read, as text: the cheap way through sysfs.

        A file that is there but has no answer (many in sysfs, e.g. EINVAL, EIO) is left out like an absent one.
        """
        found: dict[str, str] = {}
        try:
            with self.at(directory) as place, opened(place) as handle:
                for name in wanted:
                    with contextlib.suppress(OSError):
                        found[name] = read_in(handle, name).decode(errors="replace").strip()
        except ABSENT:
            return {}
        return found

    def list(self, directory: str) -> tuple[str, ...]:
        """The names in a directory, sorted; none when it is absent."""
        try:
            with self.at(directory) as place, opened(place) as handle:
                return tuple(sorted(os.listdir(handle)))  # noqa: PTH208 - a handle is no path
        except ABSENT:
            return ()

    def stat(self, path: str, *, follow: bool = True) -> os.stat_result | None:
        """Return the status of the file; None when there is none. `follow=False` reads a link itself."""
        try:
            with self.at(path, follow=follow) as place:
                return os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
        except ABSENT:
            return None

    def exists(self, path: str) -> bool:
        return self.stat(path) is not None

    def readlink(self, path: str) -> str | None:
        """The target of a link; None for anything else."""
        try:
            with self.at(path, follow=False) as place:
                return os.readlink(place.name, dir_fd=place.directory)
        except ABSENT:
            return None
        except HostError as error:
            if error.code == errno.EINVAL:
                return None
            raise

    def real(self, path: str) -> str | None:
        """The path without links, absolute as the host sees it; None when nothing is there."""
        try:
            with self.at(path) as place:
                os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
            return "/" + resolve(self.root, path)
        except ABSENT:
            return None

    def shown(self, path: str) -> str:
        """The path as people should read it."""
        return str(self.root / path.lstrip("/"))

    def at(self, path: str, *, follow: bool = True, make: bool = False, trusted: str = "") -> Located:
        """Find the place of a path for the time of a context; see `gpuplane.host.walk.find` for the arguments."""
        return Located(self, path, follow, make, trusted)


class Located:
    """A place on a host, for the time of a context, in which errors of the file system become HostError.

    A class, since a generator costs as much as the work that is done in it, and discovery does this hundreds of times.
    """

    __slots__ = ("_files", "_follow", "_handle", "_make", "_path", "_trusted")

    def __init__(self, files: HostReader, path: str, follow: bool, make: bool, trusted: str) -> None:
        self._files, self._path, self._follow, self._make, self._trusted = files, path, follow, make, trusted
        self._handle = -1

    def __enter__(self) -> ResolvedPath:
        try:
            place = find(self._files.root, self._path, follow=self._follow, make=self._make, trusted=self._trusted)
        except OSError as error:
            self._translate(error)
            raise
        self._handle = place.directory
        return place

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        os.close(self._handle)
        if isinstance(error, OSError):
            self._translate(error)

    def _translate(self, error: OSError) -> None:
        """Raise HostError, unless the error says that something is absent, which is for the caller to answer."""
        code = error.errno or 0
        if isinstance(error, ABSENT):
            return
        kind = NotPermitted if code in (errno.EACCES, errno.EPERM) else HostError
        raise kind(
            (error.strerror or str(error)).lower(),
            where=self._files.shown(self._path),
            cure=CURES.get(code, ""),
            code=code,
        ) from None


def read_in(directory: int, name: str, limit: int | None = None) -> bytes:
    handle = os.open(name, READ, dir_fd=directory)
    try:
        return content(handle, limit)
    finally:
        os.close(handle)


def content(handle: int, limit: int | None = None) -> bytes:
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is not a regular file")
    if limit is not None:
        return os.read(handle, limit)
    parts, size = [], 0
    while part := os.read(handle, 1 << 20):
        parts.append(part)
        size += len(part)
        if size > LONGEST_READ:
            raise OSError(errno.EFBIG, "it is too large to be read whole")
    return b"".join(parts)


def stat_in(place: ResolvedPath) -> os.stat_result | None:
    try:
        return os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def opened(place: ResolvedPath) -> Iterator[int]:
    handle = os.open(place.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.directory)
    try:
        yield handle
    finally:
        os.close(handle)
