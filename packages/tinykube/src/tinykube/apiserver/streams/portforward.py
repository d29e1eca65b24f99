"""`kubectl port-forward`: pairs of streams (data and error) for each connection, over SPDY.

Newer clients send the same SPDY through a WebSocket (`SPDY/3.1+portforward.k8s.io`), one message a piece.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
from typing import Final

from tinykube.apiserver.asgi import HttpRequest
from tinykube.apiserver.failure import bad_request
from tinykube.apiserver.streams import upgrade
from tinykube.apiserver.streams.spdy import Session, SpdyStream
from tinykube.kubelet.websocket import Closed, WebSocket, accept_key

_PROTOCOL: Final = "portforward.k8s.io"
_TUNNEL: Final = "SPDY/3.1+portforward.k8s.io"


async def forward(request: HttpRequest, host: str) -> None:
    """Serves connections to ports of `host` until the client goes. Raises ApiFailure 400."""
    kind = upgrade.wanted(request)
    if kind == "spdy/3.1":
        reader, writer = upgrade.switch(request, {"Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": _PROTOCOL})
        await _serve(Session(reader, writer), host)
        writer.close()
    elif kind == "websocket" and _TUNNEL in request.header(b"sec-websocket-protocol"):
        headers = {
            "Upgrade": "websocket",
            "Sec-WebSocket-Accept": accept_key(request.header(b"sec-websocket-key")),
            "Sec-WebSocket-Protocol": _TUNNEL,
        }
        reader, writer = upgrade.switch(request, headers)
        await _tunnelled(WebSocket(reader, writer), host)
        writer.close()
    else:
        raise bad_request("unable to upgrade: port-forward needs SPDY/3.1, by itself or through a WebSocket")


async def _tunnelled(socket: WebSocket, host: str) -> None:
    """SPDY through a WebSocket: the session reads and writes one end of a local pair, this carries the other."""
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
        await _serve(Session(session_reader, session_writer), host)
    finally:
        for task in tasks:
            task.cancel()
        session_writer.close()
        inner_writer.close()


async def _serve(session: Session, host: str) -> None:
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
    port = int(data.headers.get("port", "0"))
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError as problem:
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
