"""`kubectl attach`: what a container writes, over the channels of v5.channel.k8s.io. Its input is not connected."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec

from kubekit.kube.tasks import first_of
from tinykube.kubelet.execute import ERROR, STDOUT, exit_status
from tinykube.kubelet.websocket import Closed, WebSocket


async def serve_attach(socket: WebSocket, pieces: AsyncIterator[bytes]) -> None:
    """Send the pieces of a container's log until it ends, or the client goes."""
    if await first_of(_send(socket, pieces), _until_gone(socket)) == 0:
        with contextlib.suppress(Closed):
            await socket.send(bytes([ERROR]) + msgspec.json.encode(exit_status(0)))
            await socket.close()


async def _send(socket: WebSocket, pieces: AsyncIterator[bytes]) -> None:
    with contextlib.suppress(Closed):
        async for piece in pieces:
            await socket.send(bytes([STDOUT]) + piece)


async def _until_gone(socket: WebSocket) -> None:
    with contextlib.suppress(Closed):
        while True:
            await socket.receive()
