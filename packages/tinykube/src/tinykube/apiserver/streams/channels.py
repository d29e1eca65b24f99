"""The client's side of an exec or attach, whichever way it speaks: WebSocket of any version, or SPDY.

All are the same five channels: 0 stdin, 1 stdout, 2 stderr, 3 the final Status, 4 terminal sizes. A message in is
(channel, data), data None when the client has closed the channel. Before v4 of the WebSocket's protocols the final
Status is the text of an error, or nothing. Those in base64 have the channel as a digit.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Final, Protocol

import msgspec

from kubekit.documents import decode_json
from tinykube.apiserver.asgi import HttpRequest
from tinykube.apiserver.failure import bad_request
from tinykube.apiserver.streams import upgrade
from tinykube.apiserver.streams.websockets import accept_websocket, choose_protocol
from tinykube.kubelet.hangup import hung_up
from tinykube.kubelet.spdy import Session, SpdyStream
from tinykube.kubelet.websocket import TEXT, Closed, WebSocket

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
_BEFORE_V4: Final = ("channel.k8s.io", "base64.channel.k8s.io", "")
_WEBSOCKET: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io", *_BEFORE_V4)
_SPDY: Final = "v4.channel.k8s.io"
_SPDY_CHANNELS: Final = {"stdin": STDIN, "stdout": STDOUT, "stderr": STDERR, "error": ERROR, "resize": RESIZE}


class _FinalStatus(msgspec.Struct):
    message: str = ""


class Channels(Protocol):
    def messages(self) -> AsyncIterator[tuple[int, bytes | None]]: ...

    async def send(self, channel: int, data: bytes) -> None:
        """Raises ConnectionError when the client has gone."""
        ...

    async def hung_up(self) -> None:
        """Return when the client has disconnected, even if its bytes are unread."""
        ...

    async def close(self) -> None: ...


class WebSocketChannels:
    def __init__(self, protocol: str, socket: WebSocket, writer: asyncio.StreamWriter) -> None:
        self._protocol = protocol
        self._socket = socket
        self._writer = writer

    async def messages(self) -> AsyncIterator[tuple[int, bytes | None]]:
        try:
            while True:
                message = await self._socket.receive()
                if not message:
                    continue
                if "base64" in self._protocol:
                    message = bytes([message[0] - ord("0")]) + base64.b64decode(message[1:], validate=True)
                if message[0] == CLOSE:
                    yield message[1] if len(message) > 1 else STDIN, None
                else:
                    yield message[0], message[1:]
        except (Closed, ValueError):  # the client went away, or what it sends is no base64
            return

    async def send(self, channel: int, data: bytes) -> None:
        if channel == ERROR and self._protocol in _BEFORE_V4:
            data = decode_json(data, _FinalStatus).message.encode()
            if not data:
                return
        try:
            if "base64" in self._protocol:
                await self._socket.send(b"%d%b" % (channel, base64.b64encode(data)), TEXT)
            else:
                await self._socket.send(bytes([channel]) + data)
        except Closed:
            raise ConnectionResetError("the client closed the WebSocket") from None

    async def hung_up(self) -> None:
        await hung_up(self._writer)

    async def close(self) -> None:
        await self._socket.close()
        self._writer.close()


class SpdyChannels:
    """`expected` are the streams that the client opens, by the options of its request."""

    def __init__(self, session: Session, writer: asyncio.StreamWriter, expected: frozenset[str]) -> None:
        self._session = session
        self._writer = writer
        self._streams: dict[int, SpdyStream] = {}
        self._expected = expected
        self._running = asyncio.create_task(session.run())

    async def open(self) -> None:
        """Waits for the client to open its streams. Raises ConnectionError when it goes instead."""
        async for stream in self._session.streams():
            name = stream.headers.get("streamtype", "")
            if name in _SPDY_CHANNELS:
                self._streams[_SPDY_CHANNELS[name]] = stream
            if {_SPDY_CHANNELS[name] for name in self._expected} <= self._streams.keys():
                return
        raise ConnectionResetError("the client left before it opened its streams")

    async def messages(self) -> AsyncIterator[tuple[int, bytes | None]]:
        queue: asyncio.Queue[tuple[int, bytes | None]] = asyncio.Queue(1)
        inputs = [channel for channel in (STDIN, RESIZE) if channel in self._streams]

        async def pump(channel: int) -> None:
            while data := await self._streams[channel].read():
                await queue.put((channel, data))
            await queue.put((channel, None))

        async def until_gone() -> None:
            await self._running
            await queue.put((CLOSE, None))

        tasks = [asyncio.create_task(pump(channel)) for channel in inputs]
        tasks.append(asyncio.create_task(until_gone()))
        try:
            while (message := await queue.get())[0] != CLOSE:
                yield message
        finally:
            for task in tasks:
                task.cancel()

    async def send(self, channel: int, data: bytes) -> None:
        stream = self._streams.get(channel)
        if stream is not None:
            await stream.write(data)

    async def hung_up(self) -> None:
        await hung_up(self._writer)

    async def close(self) -> None:
        try:
            for stream in self._streams.values():
                await stream.close()
            await self._session.close()
        finally:
            self._running.cancel()
            self._writer.close()


def require_spoken(request: HttpRequest) -> None:
    """Raise ApiFailure 400 for a request that `accept` would refuse, before anything is done for it."""
    kind = upgrade.wanted(request)
    if kind == "websocket":
        choose_protocol(request, _WEBSOCKET)
    elif kind != "spdy/3.1":
        raise bad_request("Upgrade request required")


async def accept(request: HttpRequest) -> Channels:
    """Upgrades a request. Raises ApiFailure 400 when it asks for nothing that is spoken here."""
    require_spoken(request)
    if upgrade.wanted(request) == "websocket":
        return WebSocketChannels(*accept_websocket(request, _WEBSOCKET))
    reader, writer = upgrade.switch(request, {"Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": _SPDY})
    channels = SpdyChannels(Session(reader, writer), writer, _expected(request))
    try:
        await channels.open()
    except ConnectionError:
        writer.close()
        raise
    return channels


def _expected(request: HttpRequest) -> frozenset[str]:
    names = {"error"} | {name for name in ("stdin", "stdout", "stderr") if _flag(request, name)}
    if _flag(request, "tty"):
        names = (names | {"resize"}) - {"stderr"}
    return frozenset(names)


def _flag(request: HttpRequest, name: str) -> bool:
    return request.query.get(name, "") in ("true", "1")
