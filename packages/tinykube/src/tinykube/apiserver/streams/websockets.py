"""WebSockets of clients: which protocol is spoken, and the log of a container through one.

Source: wsstream of k8s.io/streaming. A client that names no protocol speaks the oldest one, here "".
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

from kubekit.kube.tasks import first_of
from tinykube.apiserver.asgi import HttpRequest
from tinykube.apiserver.failure import bad_request
from tinykube.apiserver.streams import upgrade
from tinykube.kubelet.websocket import BINARY, TEXT, Closed, WebSocket, accept_key

_OF_LOGS: Final = ("binary.k8s.io", "base64.binary.k8s.io", "")


def accept_websocket(request: HttpRequest, known: Sequence[str]) -> tuple[str, WebSocket, asyncio.StreamWriter]:
    """Upgrade a request; return the first of the `known` protocols that it offers, the WebSocket, and what closes it.

    Raises ApiFailure 400 when it offers none of them.
    """
    chosen = choose_protocol(request, known)
    headers = {"Upgrade": "websocket", "Sec-WebSocket-Accept": accept_key(request.header(b"sec-websocket-key"))}
    if chosen:
        headers["Sec-WebSocket-Protocol"] = chosen
    reader, writer = upgrade.switch(request, headers)
    return chosen, WebSocket(reader, writer), writer


def choose_protocol(request: HttpRequest, known: Sequence[str]) -> str:
    """Return the first of the `known` protocols that a request offers. Raises ApiFailure 400 when it offers none."""
    offered = [word.strip() for word in request.header(b"sec-websocket-protocol").split(",")]
    chosen = next((protocol for protocol in known if protocol in offered), None)
    if chosen is None:
        raise bad_request(f"unable to upgrade: none of the subprotocols {offered} is known")
    return chosen


async def send_log(request: HttpRequest, pieces: AsyncIterator[bytes]) -> None:
    """Send a log, a message a piece after an empty one, until its end or until the client goes.

    Raises ApiFailure 400.
    """
    protocol, socket, writer = accept_websocket(request, _OF_LOGS)
    try:
        await first_of(_send(socket, pieces, as_text="base64" in protocol), _gone(socket))
        await socket.close()
    finally:
        writer.close()


async def _send(socket: WebSocket, pieces: AsyncIterator[bytes], *, as_text: bool) -> None:
    opcode = TEXT if as_text else BINARY
    # When the kubelet hangs up, the output so far is the whole output.
    with contextlib.suppress(Closed, asyncio.IncompleteReadError, ConnectionError, ValueError):
        await socket.send(b"", opcode)
        async for piece in pieces:
            await socket.send(base64.b64encode(piece) if as_text else piece, opcode)


async def _gone(socket: WebSocket) -> None:
    with contextlib.suppress(Closed):
        while True:
            await socket.receive()
