"""`kubectl port-forward`: a pair of streams (data and error) for each connection, over SPDY.

An API server of 1.36 passes a client's SPDY on as it came: by itself, or through a WebSocket.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
from collections.abc import Callable
from typing import Final

from kubekit.kube.tasks import first_of
from tinykube.kubelet.requests import HttpProblem
from tinykube.kubelet.spdy import Session, SpdyStream
from tinykube.kubelet.websocket import Closed, WebSocket

PROTOCOL: Final = "SPDY/3.1+portforward.k8s.io"
SPDY_PROTOCOL: Final = "portforward.k8s.io"  # the version of the streams
_MOST_ERRORS: Final = 1000  # error streams whose data streams have not come
FindHost = Callable[[], str]
"""Returns the address of a pod's ports. Raises HttpProblem when the pod has gone."""


async def serve_forward(socket: WebSocket, find_host: FindHost) -> None:
    """Serve connections to ports of a pod until the client goes.

    The session reads and writes one end of a local pair; this carries the other, a message for each piece.
    """
    ours, theirs = sockets.socketpair()
    inner_reader, inner_writer = await asyncio.open_connection(sock=ours)
    session_reader, session_writer = await asyncio.open_connection(sock=theirs)

    async def inward() -> None:
        with contextlib.suppress(Closed):
            while True:
                inner_writer.write(await socket.receive())
                # NB: while the session does not read, no other task detects that the client disconnects.
                if await first_of(inner_writer.drain(), socket.hung_up()) == 1:
                    break
        inner_writer.close()

    async def outward() -> None:
        with contextlib.suppress(Closed):
            while data := await inner_reader.read(65536):
                await socket.send(data)

    tasks = [asyncio.create_task(inward()), asyncio.create_task(outward())]
    try:
        await serve_session(Session(session_reader, session_writer), find_host)
    finally:
        for task in tasks:
            task.cancel()
        session_writer.close()
        inner_writer.close()


async def serve_session(session: Session, find_host: FindHost) -> None:
    """Serve connections to ports of a pod until the session ends."""
    running = asyncio.create_task(session.run())
    errors: dict[str, SpdyStream] = {}
    connections: set[asyncio.Task[None]] = set()
    try:
        async for stream in session.streams():
            number = stream.headers.get("requestid", "")
            if stream.headers.get("streamtype") == "error":
                errors[number] = stream
                if len(errors) > _MOST_ERRORS:
                    return
            else:
                # NB: clients open the error stream first.
                task = asyncio.create_task(_connection(stream, errors.pop(number, None), find_host))
                connections.add(task)
                task.add_done_callback(connections.discard)
    finally:
        running.cancel()
        for task in connections:
            task.cancel()


async def _connection(data: SpdyStream, error: SpdyStream | None, find_host: FindHost) -> None:
    """Carry one connection, until both sides have closed it or one has reset it; then both streams are closed."""
    port = data.headers.get("port", "")

    async def close(problem: Exception | None) -> None:
        with contextlib.suppress(ConnectionError):
            if error is not None:
                if problem is not None:
                    await error.write(f"an error occurred forwarding {port}: {problem}".encode())
                await error.close()
                error.forget()

    try:
        reader, writer = await asyncio.open_connection(find_host(), int(port))
    except (HttpProblem, OSError, OverflowError, ValueError) as problem:  # the last two: no number of a port
        await close(problem)
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

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(inward())
            group.create_task(outward())

    failure: Exception | None = None
    try:
        await first_of(both(), data.gone.wait())
    except* OSError as failures:
        failure = failures.exceptions[0]
    finally:
        writer.close()
    with contextlib.suppress(ConnectionError):
        await data.close()
    await close(failure)
    data.forget()
