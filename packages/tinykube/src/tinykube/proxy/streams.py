"""Carries streams of TCP: each goes to one pod as a whole, and one that breaks on one side breaks on the other."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Final

from tinykube.proxy.affinity import PodChooser
from tinykube.proxy.clients import FindNode
from tinykube.proxy.routes import ListenAddress, ServiceRoute

_CONNECT_SECONDS: Final = 5.0
_PIECE: Final = 64 << 10
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER of zero seconds: the other side sees no regular end, but a reset
_LOOPBACK: Final = "127."
_ADDRESS_WITHOUT_PORT: Final = 24  # IP_BIND_ADDRESS_NO_PORT: the kernel chooses the port when the connection is made
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class StreamListener:
    """One listening socket; `route` may change while it is open."""

    def __init__(self, route: ServiceRoute, chooser: PodChooser, find_node: FindNode) -> None:
        self.route = route
        self._chooser = chooser
        self._find_node = find_node
        self._place = ListenAddress("", 0)
        self._server: asyncio.Server | None = None

    async def open(self, place: ListenAddress) -> None:
        """Listen. Raises OSError."""
        self._place = place
        self._server = await asyncio.start_server(self._accept, place.host, place.port)

    def close(self) -> None:
        """Take no more connections; those that are open go on."""
        if self._server is not None:
            self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        client, route = (peer[0] if peer else ""), self.route
        sticky_client = client
        try:
            if route.by_node is not None:
                node = await self._find_node(peer[:2], self._place) if peer else ""
                route, sticky_client = route.of_node(node), f"{node} {client}"
                if not route.pods:
                    _break_off(writer)
                    return
            for pod in self._chooser.order(route, sticky_client):
                if (to_pod := await _connected(pod, client)) is not None:
                    self._chooser.took(route, sticky_client, pod)
                    await _carry((reader, writer), to_pod)
                    return
        finally:
            writer.close()


async def _connected(pod: ListenAddress, client: str) -> Stream | None:
    """Return a connection to a pod; None where it does not answer. Only then may the next pod get the stream.

    The pod sees the address of a client of this machine's loopback network, as with kube-proxy.
    """
    to_pod = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        to_pod.setblocking(False)
        if client.startswith(_LOOPBACK):
            to_pod.setsockopt(socket.IPPROTO_IP, _ADDRESS_WITHOUT_PORT, 1)
            to_pod.bind((client, 0))
        async with asyncio.timeout(_CONNECT_SECONDS):
            await asyncio.get_running_loop().sock_connect(to_pod, (pod.host, pod.port))
            return await asyncio.open_connection(sock=to_pod)
    except OSError:
        to_pod.close()
        return None
    except BaseException:
        to_pod.close()
        raise


async def _carry(client: Stream, pod: Stream) -> None:
    """Carry bytes both ways until both sides have ended."""
    try:
        await asyncio.gather(_one_way(client[0], pod[1]), _one_way(pod[0], client[1]))
    finally:
        pod[1].close()


async def _one_way(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Carry bytes until the source has ended. A connection that breaks breaks the other one too."""
    try:
        while piece := await source.read(_PIECE):
            sink.write(piece)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()
    except OSError:
        _break_off(sink)


def _break_off(sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # it may be closed already
        sink.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sink.transport.abort()
