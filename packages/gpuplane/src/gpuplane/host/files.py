"""A host's file system, seen through its root directory.

Invariants:

- No path leads out of the root, whatever links lie in it (see `gpuplane.host.walk`).
- A file is replaced whole or not at all: the new bytes are written to a temporary file in the same directory, flushed,
  and renamed over it. Owner, mode and SELinux label of a file that existed are kept. After a crash the next writer of
  the same file clears the rest.
- What cannot be done raises `HostError`, with the path and what to do; that a file is absent is an answer, no error.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from gpuplane.host.runner import Command, Completed, Runner, SystemRunner
from gpuplane.host.walk import ResolvedPath, find, resolve
from gpuplane.host.watch import watch
from kubekit.errors import Retryable, Terminal

_CURES = {
    errno.EROFS: "remount the file system read-write",
    errno.ENOSPC: "free space on the file system",
    errno.EDQUOT: "raise the quota",
    errno.EACCES: "run as root, in a privileged container on a node",
    errno.EPERM: "run as root, in a privileged container on a node",
    errno.EISDIR: "move it away",
    errno.EFBIG: "move it away",
    errno.ELOOP: "look for a link that points to itself",
}
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # NONBLOCK: a FIFO must not hold us
_ABSENT = (FileNotFoundError, NotADirectoryError)
LONGEST_READ = 256 << 20  # bytes of a file that is read whole; a driver's largest library has 100 MB


class HostError(Terminal):
    """The host's file system refused; `code` is the errno."""

    def __init__(self, what: str, *, where: str = "", cure: str = "", code: int = 0) -> None:
        super().__init__(what, where=where, cure=cure)
        self.code = code


class NotPermitted(HostError):
    """We may not."""

    exit_code = 3


class Locked(Retryable):
    """Another process holds the lock."""


class Host:
    """The file system below `root`, and the programs in it. Paths are relative to the root, with or without a `/`.

    Args:
        root: `/` on the host itself, `/host` in a pod, any directory in a test.
        runner: runs the host's programs.
        flush: whether durable writes reach the disk before they return; not for a host that is gone with this process.
    """

    def __init__(self, root: Path, runner: Runner | None = None, *, flush: bool = True) -> None:
        self.root = root
        self._flush = flush
        self.runner: Runner = runner or SystemRunner()

    def __repr__(self) -> str:
        return f"Host({str(self.root)!r})"

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, path: str, *, limit: int | None = None) -> bytes | None:
        """The bytes of a regular file, the first `limit` of them; None when there is none."""
        try:
            with self._at(path) as place:
                return _read(place.directory, place.name, limit)
        except _ABSENT:
            return None

    def load(self, path: str) -> tuple[bytes, os.stat_result] | None:
        """The bytes of a regular file and what it is, seen at one moment; None when there is none."""
        try:
            with self._at(path) as place:
                handle = os.open(place.name, _READ, dir_fd=place.directory)
                try:
                    return _content(handle), os.fstat(handle)
                finally:
                    os.close(handle)
        except _ABSENT:
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
            with self._at(directory) as place, _directory(place) as handle:
                for name in wanted:
                    with contextlib.suppress(OSError):
                        found[name] = _read(handle, name).decode(errors="replace").strip()
        except _ABSENT:
            return {}
        return found

    def list(self, directory: str) -> tuple[str, ...]:
        """The names in a directory, sorted; none when it is absent."""
        try:
            with self._at(directory) as place, _directory(place) as handle:
                return tuple(sorted(os.listdir(handle)))  # noqa: PTH208 - a handle is no path
        except _ABSENT:
            return ()

    def stat(self, path: str, *, follow: bool = True) -> os.stat_result | None:
        """Return the status of the file; None when there is none. `follow=False` reads a link itself."""
        try:
            with self._at(path, follow=follow) as place:
                return os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
        except _ABSENT:
            return None

    def exists(self, path: str) -> bool:
        return self.stat(path) is not None

    def readlink(self, path: str) -> str | None:
        """The target of a link; None for anything else."""
        try:
            with self._at(path, follow=False) as place:
                return os.readlink(place.name, dir_fd=place.directory)
        except _ABSENT:
            return None
        except HostError as error:
            if error.code == errno.EINVAL:
                return None
            raise

    def real(self, path: str) -> str | None:
        """The path without links, absolute as the host sees it; None when nothing is there."""
        try:
            with self._at(path) as place:
                os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
            return "/" + resolve(self.root, path)
        except _ABSENT:
            return None

    # -- writing ---------------------------------------------------------------------------------------------------

    def write_atomic(
        self, path: str, data: bytes, *, mode: int = 0o644, durable: bool = True, above: bool = False
    ) -> bool:
        """Make the file's content `data`; False when it equals `data` already. A link is followed, and stays.

        Args:
            mode: permissions of a file that is new.
            durable: flush file and directory to the disk. Needless below `run/`, which no boot survives.
            above: write the new bytes one directory further up first, for a directory of which a program reads every
            file.
        """
        with self._at(path, make=True) as place:
            old = _stat(place)
            if old is not None:
                if not stat.S_ISREG(old.st_mode):
                    raise HostError("it is not a regular file", where=self.shown(path), cure="move it away")
                if old.st_size == len(data) and _read(place.directory, place.name) == data:
                    return False
            with self._at(path.rpartition("/")[0] if above else path) as folder:
                _replace(place, folder.directory, data, old, mode, durable and self._flush)
            return True

    def write_in_place(self, path: str, data: bytes) -> None:
        """Write to a file that cannot be replaced: a parameter of the kernel. Nothing happens when it is absent."""
        with contextlib.suppress(*_ABSENT), self._at(path) as place:
            handle = os.open(
                place.name, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.directory
            )
            try:
                os.write(handle, data)
            finally:
                os.close(handle)

    def symlink(self, path: str, target: str, *, durable: bool = True) -> bool:
        """Make `path` a link to `target`, replacing a file or link; False when it is that link already."""
        if self.readlink(path) == target:
            return False
        with self._at(path, follow=False, make=True) as place:
            temporary = _temporary(place.name)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=place.directory)
            os.symlink(target, temporary, dir_fd=place.directory)
            os.rename(temporary, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
            if durable and self._flush:
                _flush(place)
            return True

    def missing_dirs(self, path: str) -> tuple[str, ...]:
        """The directories above `path` that do not exist yet, outermost first."""
        missing: list[str] = []
        directory = path.strip("/").rpartition("/")[0]
        while directory and not self.exists(directory):
            missing.append(directory)
            directory = directory.rpartition("/")[0]
        return tuple(reversed(missing))

    def remove(self, path: str, *, durable: bool = True) -> bool:
        """Delete a file or link; False when there is none."""
        try:
            with self._at(path, follow=False) as place:
                _unlink(place.directory, place.name)
                if durable and self._flush:
                    _flush(place)
                return True
        except _ABSENT:
            return False

    def clear_leftover(self, path: str) -> None:
        """Delete the temporary files that a dead writer has left next to `path` or above it, and next to a link's
        target.
        """
        temporary = _temporary(path.rpartition("/")[2])
        with contextlib.suppress(*_ABSENT), self._at(path, follow=False) as place:
            _unlink(place.directory, temporary)
        with contextlib.suppress(*_ABSENT), self._at(path.rpartition("/")[0]) as place:
            _unlink(place.directory, temporary)
        if self.readlink(path) is not None:
            with contextlib.suppress(*_ABSENT), self._at(path) as place:
                _unlink(place.directory, _temporary(place.name))

    def remove_dir(self, path: str) -> bool:
        """Delete a directory if it is empty; False when it is not, or there is none."""
        try:
            with self._at(path, follow=False) as place:
                os.rmdir(place.name, dir_fd=place.directory)
                return True
        except _ABSENT:
            return False
        except HostError as error:
            if error.code in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise

    def chmod(self, path: str, mode: int, uid: int, gid: int) -> None:
        """Give a file its permissions and owner, touching only what differs."""
        with self._at(path) as place:
            handle = os.open(place.name, _READ, dir_fd=place.directory)
            try:
                now = os.fstat(handle)
                if (now.st_uid, now.st_gid) != (uid, gid):
                    os.fchown(handle, uid, gid)
                if stat.S_IMODE(now.st_mode) != mode:
                    os.fchmod(handle, mode)
            finally:
                os.close(handle)

    # -- waiting, locking, running ---------------------------------------------------------------------------------

    def watch(self, *paths: str) -> AsyncIterator[None]:
        """Yields at once, and again whenever one of the files may have changed (see `gpuplane.host.watch`)."""
        return watch(self.root, paths)

    async def wait_for(self, path: str) -> bytes:
        """The content of a file, as soon as it exists."""
        async for _ in self.watch(path):
            data = self.read(path)
            if data is not None:
                return data
        raise AssertionError("a watch never ends")

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Hold an exclusive lock while in the context; the kernel frees it when we die, also by kill -9.

        The file, with our process id for people to read, is removed when the lock is given back.

        Raises:
            Locked: another process holds it.
        """
        handle = self._lock(path)
        try:
            yield
        finally:
            try:
                self.remove(path, durable=False)
            finally:
                os.close(handle)

    def _lock(self, path: str) -> int:
        while True:
            with self._at(path, make=True) as place:
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                handle = os.open(place.name, flags, 0o644, dir_fd=place.directory)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    holder = os.read(handle, 32).decode(errors="replace").strip()
                    os.close(handle)
                    raise Locked(f"process {holder or '?'} is at work here", where=self.shown(path)) from None
                now = _stat(place)
                if now is not None and now.st_ino == os.fstat(handle).st_ino:
                    try:
                        os.truncate(handle, 0)
                        os.write(handle, f"{os.getpid()}\n".encode())
                    except OSError:
                        os.close(handle)
                        raise
                    return handle
            os.close(handle)  # its last holder removed it between our two calls

    def connect(self, path: str, *, timeout: float = 5.0) -> socket.socket | None:
        """Connect to a unix socket of the host; return None when no process listens there.

        The address goes through a handle of the directory, so neither a deep root nor a link in it is in the way.
        """
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(timeout)
        try:
            with self._at(path) as place:
                client.connect(f"/proc/self/fd/{place.directory}/{place.name}")
                return client
        except (*_ABSENT, HostError, TimeoutError):
            client.close()
            return None

    async def run(self, *argv: str, chroot: bool = True, timeout: float = 300.0) -> Completed:
        """Run a program of the host; see `gpuplane.host.runner` for how it is found."""
        return await self.runner.run(Command(argv, self.root if chroot else None, timeout))

    def shown(self, path: str) -> str:
        """The path as people should read it."""
        return str(self.root / path.lstrip("/"))

    def _at(self, path: str, *, follow: bool = True, make: bool = False) -> _At:
        return _At(self, path, follow, make)


class _At:
    """A place on a host for the time of a context, in which errors of the file system become HostError.

    A class, since a generator costs as much as the work that is done in it, and discovery does this hundreds of times.
    """

    __slots__ = ("_follow", "_handle", "_host", "_make", "_path")

    def __init__(self, host: Host, path: str, follow: bool, make: bool) -> None:
        self._host, self._path, self._follow, self._make = host, path, follow, make
        self._handle = -1

    def __enter__(self) -> ResolvedPath:
        try:
            place = find(self._host.root, self._path, follow=self._follow, make=self._make)
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
        if isinstance(error, _ABSENT):
            return
        kind = NotPermitted if code in (errno.EACCES, errno.EPERM) else HostError
        raise kind(
            (error.strerror or str(error)).lower(),
            where=self._host.shown(self._path),
            cure=_CURES.get(code, ""),
            code=code,
        ) from None


def _read(directory: int, name: str, limit: int | None = None) -> bytes:
    handle = os.open(name, _READ, dir_fd=directory)
    try:
        return _content(handle, limit)
    finally:
        os.close(handle)


def _content(handle: int, limit: int | None = None) -> bytes:
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


def _stat(place: ResolvedPath) -> os.stat_result | None:
    try:
        return os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _unlink(directory: int, name: str) -> None:
    """Delete a file or link.

    NB: the kernel refuses this on a read-only file system before it looks whether the file exists.
    """
    try:
        os.unlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.EROFS:
            os.stat(name, dir_fd=directory, follow_symlinks=False)
        raise


def _temporary(name: str) -> str:
    return f".{name}.gpuplane"


_OF_CONTENT = ("security.ima", "security.evm")  # digests of the bytes, which the kernel makes


def _replace(
    place: ResolvedPath, folder: int, data: bytes, old: os.stat_result | None, mode: int, durable: bool
) -> None:
    """Write in the directory `folder`, flush, rename. The name there is fixed, so that a crash leaves at most one file,
    which the next writer takes over; the lock on it keeps two writers apart."""
    temporary = _temporary(place.name)
    handle = _open_locked(folder, temporary)
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
        os.rename(temporary, place.name, src_dir_fd=folder, dst_dir_fd=place.directory)
        if durable:
            _flush(place)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise
    finally:
        os.close(handle)


def _open_locked(directory: int, name: str) -> int:
    while True:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(name, flags, 0o600, dir_fd=directory)
        fcntl.flock(handle, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            there = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if there.st_ino == os.fstat(handle).st_ino:
                return handle
        os.close(handle)  # the writer before us renamed it while we waited


def _copy_attributes(place: ResolvedPath, handle: int) -> None:
    """Give the new file the extended attributes of the old one: access control lists, SELinux labels, people's own."""
    source = os.open(place.name, _READ, dir_fd=place.directory)
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


def _flush(place: ResolvedPath) -> None:
    with _directory(ResolvedPath(place.directory, ".")) as handle:
        os.fsync(handle)


@contextlib.contextmanager
def _directory(place: ResolvedPath) -> Iterator[int]:
    handle = os.open(place.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.directory)
    try:
        yield handle
    finally:
        os.close(handle)
