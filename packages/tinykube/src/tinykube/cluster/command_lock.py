"""A lock for commands: if two would start or remove the same cluster, the second one waits or gives up.

The directory itself is locked, so no file is left behind. The lock ends with the process that holds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

from kubekit.errors import Terminal
from tinykube.cluster.directory import make_private
from tinykube.distribution import Distribution

_POLL_S: Final = 0.02


@contextlib.contextmanager
def usable(distribution: Distribution, directory: Path) -> Iterator[None]:
    """Raise Terminal with a cure if the system refuses what is done in a directory, as on a full disk."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        cure = "free some space" if full else "give it to this user (chown -R)"
        raise Terminal(
            f"the cluster's directory cannot be used: {error}",
            where=str(directory),
            cure=f"{cure}, or set {distribution.home_variable} to another directory",
        ) from error


@contextlib.asynccontextmanager
async def command_lock(distribution: Distribution, directory: Path, taken: Callable[[], object]) -> AsyncIterator[None]:
    """Make a directory and hold its lock. `taken` is called if another process holds it: to report that, or to raise.

    Where the file system cannot lock a directory (NFS), there is no lock.

    Raises Terminal when the directory cannot be made.
    """
    with usable(distribution, directory):
        make_private(directory)
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not _locked(descriptor):
            taken()
            while not _locked(descriptor):  # noqa: ASYNC110 - another process releases it
                await asyncio.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
