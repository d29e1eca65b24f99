"""`kubectl port-forward`: a pair of streams (data and error) for each connection, over SPDY.

An API server of 1.36 passes a client's SPDY on as it came: by itself, or through a WebSocket.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
from typing import Final

from tinykube.kubelet.spdy import Session, SpdyStream
from tinykube.kubelet.websocket import Closed, WebSocket

PROTOCOL: Final = "SPDY/3.1+portforward.k8s.io"
SPDY_PROTOCOL: Final = "portforward.k8s.io"  # the version of the streams


async def serve_forward(socket: WebSocket, host: str) -> None:
    """Serve connections to ports of `host` until the client goes.

    The session reads and writes one end of a local pair; this carries the other, a message for each piece.
    """
    ours, theirs = sockets.socketpair()
    inner_reader, inner_writer = await asyncio.open_connection(sock=ours)
    session_reader, session_writer = await asyncio.open_connection(sock=theirs)

    async def inward() -> None:
        with contextlib.suppress(Closed):
            while True:
                inner_writer.write(await socket.receive())
                await inner_writer.drain()
        inner_writer.close()

    async def outward() -> None:
        with contextlib.suppress(Closed):
            while data := await inner_reader.read(65536):
                await socket.send(data)

    tasks = [asyncio.create_task(inward()), asyncio.create_task(outward())]
    try:
        await serve_session(Session(session_reader, session_writer), host)
    finally:
        for task in tasks:
            task.cancel()
        session_writer.close()
        inner_writer.close()


async def serve_session(session: Session, host: str) -> None:
    """Serve connections to ports of `host` until the session ends."""
    running = asyncio.create_task(session.run())
    errors: dict[str, SpdyStream] = {}
    connections: set[asyncio.Task[None]] = set()
    try:
        async for stream in session.streams():
            number = stream.headers.get("requestid", "")
            if stream.headers.get("streamtype") == "error":
                errors[number] = stream
            else:
                # NB: clients open the error stream first.
                task = asyncio.create_task(_connection(stream, errors.pop(number, None), host))
                connections.add(task)
                task.add_done_callback(connections.discard)
    finally:
        running.cancel()
        for task in connections:
            task.cancel()


async def _connection(data: SpdyStream, error: SpdyStream | None, host: str) -> None:
    port = data.headers.get("port", "")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except (OSError, OverflowError, ValueError) as problem:  # the last two: no number of a port
        if error is not None:
            await error.write(f"an error occurred forwarding {port}: {problem}".encode())
            await error.close()
        data.reset()
        return

    async def inward() -> None:
        while piece := await data.read():
            writer.write(piece)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()

    async def outward() -> None:
        while piece := await reader.read(65536):
            await data.write(piece)
        await data.close()

    try:
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(inward(), outward())
        if error is not None:
            await error.close()
    finally:
        writer.close()
