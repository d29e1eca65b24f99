"""The unix socket of a simulated runtime: it can be opened and closed any number of times, in a running event loop.

Invariants: a program that connects after `open` is answered, although no task has run since; after `close` no task of
this socket goes on, and the socket's file stays, as after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from pathlib import Path


class UnixListener:
    """A unix socket at `path`.

    Args:
        serve: answers one connection, and closes its writer.
    """

    def __init__(self, path: Path, serve: Callable[[StreamReader, StreamWriter], Awaitable[None]]) -> None:
        self.path = path
        self._answer = serve
        self._server: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Listen. The socket that a previous process left at the path is removed."""
        if self._server is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        server = socket.socket(socket.AF_UNIX)
        server.setblocking(False)
        directory = os.open(self.path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Through the directory: the path may be longer than a socket's address can be.
            server.bind(f"/proc/self/fd/{directory}/{self.path.name}")
        finally:
            os.close(directory)
        server.listen()
        self._server = server
        asyncio.get_running_loop().add_reader(server, self._accept)

    def close(self) -> None:
        """Stop listening, and end every connection."""
        if self._server is not None:
            asyncio.get_running_loop().remove_reader(self._server)
            self._server.close()
            self._server = None
        for task in self._tasks:
            task.cancel()

    def _accept(self) -> None:
        assert self._server is not None, "readers go with their socket"
        with contextlib.suppress(BlockingIOError):
            client, _ = self._server.accept()
            client.setblocking(False)
            task = asyncio.create_task(self._serve(client))
            self._tasks.add(task)
            task.add_done_callback(functools.partial(self._served, client))

    def _served(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # perhaps before it began
            client.close()

    async def _serve(self, client: socket.socket) -> None:
        await self._answer(*await asyncio.open_unix_connection(sock=client))
