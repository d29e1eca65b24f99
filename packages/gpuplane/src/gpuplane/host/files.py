"""A host's file system, seen through its root directory.

Invariants:

- No path leads out of the root, whatever links lie in it (see `gpuplane.host.walk`).
- A file is replaced whole or not at all (see `gpuplane.host.replacing`). After a crash the next writer of the same file
  clears the rest.
- Below the folders of our own (OWN_FOLDERS) no link is followed when a file is written or removed: a link there was
  placed by another, and a link in the place of the file itself is replaced. Elsewhere links are the administrator's.
- A failed operation raises `HostError`, with the path and what to do; that a file is absent is an answer, no error.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from gpuplane import names
from gpuplane.host.errors import ABSENT, HostError, Locked
from gpuplane.host.reading import READ, HostReader, Located, read_in, stat_in
from gpuplane.host.replacing import flush, replace, temporary, unlink
from gpuplane.host.runner import Command, Completed, Runner, SystemRunner
from gpuplane.host.watch import watch

OWN_FOLDERS: Final = {
    names.STATE_DIR: names.STATE_DIR,
    "run/nvidia/validations": "run/nvidia",
    names.MPS_ROOT.lstrip("/"): "run/nvidia",
}
"""Folder of ours -> the folder at or above it up to which links are followed."""


def trusted_folder(path: str) -> str:
    """Return the folder from which on no link is followed to write `path`; empty where links are followed."""
    clean = path.strip("/")
    return next((top for own, top in OWN_FOLDERS.items() if clean.startswith(own + "/")), "")


class Host(HostReader):
    """The file system below `root`, and the programs in it. Paths are relative to the root, with or without a `/`.

    Args:
        root: `/` on the host itself, `/host` in a pod, any directory in a test.
        runner: runs the host's programs.
        flush: whether durable writes reach the disk before they return; not for a host that is gone with this process.
    """

    def __init__(self, root: Path, runner: Runner | None = None, *, flush: bool = True) -> None:
        super().__init__(root)
        self._flush = flush
        self.runner: Runner = runner or SystemRunner()

    def __repr__(self) -> str:
        return f"Host({str(self.root)!r})"

    # -- writing ---------------------------------------------------------------------------------------------------

    def write_atomic(
        self, path: str, data: bytes, *, mode: int = 0o644, durable: bool = True, above: bool = False
    ) -> bool:
        """Make the file's content `data`; False when it equals `data` already. Outside of OWN_FOLDERS a link is
        followed, and stays.

        Args:
            mode: permissions of a file that is new.
            durable: flush file and directory to the disk. Needless below `run/`, which no boot survives.
            above: write the new bytes one directory further up first, for a directory of which a program reads every
            file.
        """
        with self._to_write(path, make=True) as place:
            old = stat_in(place)
            if old is not None and stat.S_ISLNK(old.st_mode):
                old = None  # in a folder of ours: the file replaces a link of another
            if old is not None:
                if not stat.S_ISREG(old.st_mode):
                    raise HostError("it is not a regular file", where=self.shown(path), cure="move it away")
                if old.st_size == len(data) and read_in(place.directory, place.name) == data:
                    return False
            with self._to_write(path.rpartition("/")[0] if above else path) as folder:
                replace(place, folder.directory, data, old, mode, durable and self._flush)
            return True

    def write_in_place(self, path: str, data: bytes) -> None:
        """Write to a file that cannot be replaced: a parameter of the kernel. Nothing happens when it is absent."""
        with contextlib.suppress(*ABSENT), self._to_write(path) as place:
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
        with self._to_write(path, follow=False, make=True) as place:
            fresh = temporary(place.name)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fresh, dir_fd=place.directory)
            os.symlink(target, fresh, dir_fd=place.directory)
            os.rename(fresh, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
            if durable and self._flush:
                flush(place)
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
            with self._to_write(path, follow=False) as place:
                unlink(place.directory, place.name)
                if durable and self._flush:
                    flush(place)
                return True
        except ABSENT:
            return False

    def clear_leftover(self, path: str) -> None:
        """Delete the temporary files that a dead writer has left next to `path` or above it, and next to a link's
        target.
        """
        left = temporary(path.rpartition("/")[2])
        with contextlib.suppress(*ABSENT), self._to_write(path, follow=False) as place:
            unlink(place.directory, left)
        with contextlib.suppress(*ABSENT), self._to_write(path.rpartition("/")[0]) as place:
            unlink(place.directory, left)
        if self.readlink(path) is not None:
            with contextlib.suppress(*ABSENT), self._to_write(path) as place:
                unlink(place.directory, temporary(place.name))

    def remove_dir(self, path: str) -> bool:
        """Delete a directory if it is empty; False when it is not, or there is none."""
        try:
            with self._to_write(path, follow=False) as place:
                os.rmdir(place.name, dir_fd=place.directory)
                return True
        except ABSENT:
            return False
        except HostError as error:
            if error.code in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise

    def chmod(self, path: str, mode: int, uid: int, gid: int) -> None:
        """Give a file its permissions and owner, touching only what differs."""
        with self._to_write(path) as place:
            handle = os.open(place.name, READ, dir_fd=place.directory)
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
            with self._to_write(path, make=True) as place:
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                handle = os.open(place.name, flags, 0o644, dir_fd=place.directory)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    holder = os.read(handle, 32).decode(errors="replace").strip()
                    os.close(handle)
                    raise Locked(f"process {holder or '?'} is at work here", where=self.shown(path)) from None
                now = stat_in(place)
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
            with self.at(path) as place:
                client.connect(f"/proc/self/fd/{place.directory}/{place.name}")
                return client
        except (*ABSENT, HostError, TimeoutError):
            client.close()
            return None

    async def run(self, *argv: str, chroot: bool = True, timeout: float = 300.0) -> Completed:
        """Run a program of the host; see `gpuplane.host.runner` for how it is found."""
        return await self.runner.run(Command(argv, self.root if chroot else None, timeout))

    def _to_write(self, path: str, *, follow: bool = True, make: bool = False) -> Located:
        trusted = trusted_folder(path)
        return self.at(path, follow=follow and not trusted, make=make, trusted=trusted)
