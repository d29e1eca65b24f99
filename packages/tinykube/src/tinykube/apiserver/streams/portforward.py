"""`kubectl port-forward` between a client and the pod's kubelet: SPDY by itself, or through a WebSocket.

Newer clients send SPDY through a WebSocket, one message a piece, as the kubelet wants it. Nothing of it is read here.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Protocol

from kubekit.kube.tasks import first_of
from tinykube.apiserver.asgi import HttpRequest
from tinykube.apiserver.failure import bad_request
from tinykube.apiserver.streams import upgrade
from tinykube.apiserver.streams.websockets import accept_websocket
from tinykube.kubelet.hangup import hung_up
from tinykube.kubelet.portforward import PROTOCOL, SPDY_PROTOCOL
from tinykube.kubelet.websocket import Closed, WebSocket

_SPDY: Final = {"Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": SPDY_PROTOCOL}
_PIECE_BYTES: Final = 65536


async def carry(request: HttpRequest, kubelet: WebSocket) -> None:
    """Upgrade a request, and carry bytes both ways until one side goes. Raises ApiFailure 400 for another request."""
    client: _Messages
    if upgrade.wanted(request) == "spdy/3.1":
        reader, writer = upgrade.switch(request, _SPDY)
        client = _Bytes(reader, writer)
    elif upgrade.wanted(request) == "websocket":
        _, client, writer = accept_websocket(request, (PROTOCOL,))
    else:
        raise bad_request("unable to upgrade: port-forward needs SPDY/3.1, by itself or through a WebSocket")
    try:
        # NB: while the kubelet does not read, the first copy cannot detect that the client disconnects.
        await first_of(_copy(client, kubelet), _copy(kubelet, client), hung_up(writer))
    finally:
        writer.close()


class _Messages(Protocol):
    async def receive(self) -> bytes: ...
    async def send(self, data: bytes) -> None: ...


class _Bytes:
    """A plain connection, its pieces as messages. Raises Closed as a WebSocket does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> bytes:
        try:
            data = await self._reader.read(_PIECE_BYTES)
        except ConnectionError as error:
            raise Closed from error
        if not data:
            raise Closed
        return data

    async def send(self, data: bytes) -> None:
        # NB: writing to a closed connection is a RuntimeError with uvloop.
        if self._writer.is_closing():
            raise Closed
        self._writer.write(data)
        try:
            await self._writer.drain()
        except ConnectionError as error:
            raise Closed from error


async def _copy(source: _Messages, sink: _Messages) -> None:
    with contextlib.suppress(Closed):
        while True:
            await sink.send(await source.receive())
