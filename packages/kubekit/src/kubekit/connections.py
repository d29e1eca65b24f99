"""The connections of a server: how many there are, and which one is closed for another.

A caller costs a server a connection, and the memory of what the caller sends slowly or does not read. Both are bounded
here, so that no caller blocks another one.

Invariants:

- There are never more served connections than `most`, and never more than half of the files that the process may open.
- Only a connection that waits for its caller is closed for another one, the one that has waited for longest first.
  Where all connections have requests in work, a new one waits in the kernel's queue until a request is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, cast

log = logging.getLogger("kubekit.connections")

BACKLOG: Final = 128
NO_FILES_SECONDS: Final = 0.1  # until the next try, where the process can open no more files
_NO_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_IPV6: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
Connected = Callable[[socket.socket], Coroutine[Any, Any, None]]
"""Serves an accepted connection to its end, and closes it."""


class Connections:
    """The open connections of a server.

    Args:
        most: how many there are at most.
    """

    def __init__(self, most: int) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = most if files == resource.RLIM_INFINITY else min(most, max(files // 2, 1))
        self._tasks: dict[asyncio.Task[None], socket.socket] = {}
        self._waiting: dict[asyncio.Task[None], None] = {}  # the one that has waited for longest is first
        self._changed = asyncio.Event()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark the connection of this task as one that waits for its caller: the task may be cancelled meanwhile."""
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._waiting[task] = None
        self._changed.set()
        try:
            yield
        finally:
            self._waiting.pop(task, None)

    async def accept(self, listener: socket.socket, connected: Connected) -> None:
        """Accept connections until cancelled; each is served by a task of its own."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _NO_FILES:
                    log.warning("connection not accepted, closing the one that waits longest: %s", error)
                    self._close_longest_waiting()
                    await asyncio.sleep(NO_FILES_SECONDS)
                continue
            try:
                await self._room()
            except asyncio.CancelledError:
                accepted.close()
                raise
            with contextlib.suppress(OSError):  # the caller has disconnected already
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = asyncio.create_task(connected(accepted))
            self._tasks[task] = accepted
            task.add_done_callback(self._has_ended)

    async def end(self) -> None:
        """Close all connections."""
        left = dict(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for accepted in left.values():
            accepted.close()  # of a task that had not begun

    async def _room(self) -> None:
        """Return when there is room for one more connection."""
        while len(self._tasks) >= self._most:
            self._changed.clear()
            self._close_longest_waiting()
            await self._changed.wait()

    def _close_longest_waiting(self) -> None:
        longest = next(iter(self._waiting), None)
        if longest is not None:
            del self._waiting[longest]
            longest.cancel()

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        self._changed.set()


class Transfers:
    """The bytes of what is in transfer; of too many, the transfer that began first is given up: its time-out runs out.

    Args:
        most: bytes of all transfers together, apart from a single one that has more.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._sizes: dict[asyncio.Timeout, int] = {}  # the transfer that began first is first
        self._total = 0

    def count(self, transfer: asyncio.Timeout, size: int) -> None:
        """Note the bytes of a transfer so far, and give up others where all together are too many."""
        self._total += size - self._sizes.get(transfer, 0)
        self._sizes[transfer] = size
        while self._total > self._most:
            first = next((other for other in self._sizes if other is not transfer), None)
            if first is None:
                return
            first.reschedule(asyncio.get_running_loop().time())
            self.done(first)

    def done(self, transfer: asyncio.Timeout) -> None:
        """Forget a transfer that has ended."""
        self._total -= self._sizes.pop(transfer, 0)


def listen(address: str, port: int) -> socket.socket:
    """Return a listening socket; "" is every address of the machine. Raises OSError where there can be none."""
    if address:
        return _listening(socket.AF_INET6 if ":" in address else socket.AF_INET, address, port)
    try:
        return _listening(socket.AF_INET6, "", port)
    except OSError as error:
        if error.errno not in _NO_IPV6:
            raise
        return _listening(socket.AF_INET, "", port)


def _listening(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address != ""))
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
