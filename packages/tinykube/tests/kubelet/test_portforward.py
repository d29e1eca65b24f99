"""Ports that the kubelet's endpoint forwards, by SPDY itself and through a WebSocket."""

from __future__ import annotations

import asyncio
import socket as sockets
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.spdy_client import SpdyClient, frames
from tinykube.kubelet.portforward import PROTOCOL
from tinykube.kubelet.requests import HttpProblem
from tinykube.kubelet.server import KubeletBackend, KubeletServer, LogFile
from tinykube.kubelet.websocket import WebSocket

LOCALHOST = "127.0.0.1"
UPGRADES = {
    "spdy": "Upgrade: SPDY/3.1",
    "websocket": f"Upgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Protocol: {PROTOCOL}",
}


class Pods:
    """The pod of the kubelet, which may end."""

    there = True


def host_of(namespace: str, name: str) -> Callable[[], str]:
    if (namespace, name) != ("default", "one"):
        raise HttpProblem(404, f"no pod {name}")

    def host() -> str:
        if not Pods.there:
            raise HttpProblem(500, 'pod not found ("one_default")')
        return LOCALHOST

    return host


@pytest.fixture
async def kubelet() -> AsyncIterator[tuple[str, int]]:
    server = KubeletServer(
        KubeletBackend(
            log_file=lambda *_: LogFile(Path(), lambda: False),
            exec_command=lambda *_: [],
            forward_host=host_of,
            pods=lambda: b"{}",
            now=lambda: 0.0,
        ),
        "",
    )
    yield LOCALHOST, await server.start()
    await server.stop()


@pytest.fixture
async def shouting() -> AsyncIterator[str]:
    """The port of a program that answers all it gets in capitals, once its client has closed its half."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(answer, LOCALHOST, 0)
    yield str(listener.sockets[0].getsockname()[1])
    listener.close()


@pytest.fixture
async def resetting() -> AsyncIterator[str]:
    """The port of a program that resets each connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        with sockets.fromfd(writer.get_extra_info("socket").fileno(), sockets.AF_INET, sockets.SOCK_STREAM) as same:
            same.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    listener = await asyncio.start_server(answer, LOCALHOST, 0)
    yield str(listener.sockets[0].getsockname()[1])
    listener.close()


class Forwarding:
    """A client that forwards ports: `connect` opens a connection, sends and returns what came back, and the error."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]], receive: Callable[[], Awaitable[bytes]]) -> None:
        self._send = send
        self._receive = receive
        self._client = SpdyClient()
        self._received = b""
        self._number = 1

    async def connect(self, port: str, sent: bytes, *, last: bool = True, reset: bool = False) -> tuple[bytes, bytes]:
        """`last`: the client closes its half. `reset`: it then resets the stream, as kubectl does."""
        error, data = self._number, self._number + 2
        self._number += 4
        for number, kind in ((error, "error"), (data, "data")):
            await self._send(self._client.open(number, streamtype=kind, port=port, requestid=str(error)))
        await self._send(self._client.data(data, sent, last=last))
        if reset:
            await self._send(struct.pack("!HHIII", 0x8003, 3, 8, data, 5))
        while True:
            streams, ended, _ = frames(self._received)
            if {error, data} <= ended | ({data} if reset else set()):
                return streams.get(data, b""), streams.get(error, b"")
            self._received += await self._receive()


@pytest.fixture(params=UPGRADES)
async def forwarding(kubelet: tuple[str, int], request: pytest.FixtureRequest) -> AsyncIterator[Forwarding]:
    reader, writer = await asyncio.open_connection(*kubelet)
    upgrade = UPGRADES[request.param]
    writer.write(
        f"GET /portForward/default/one HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n{upgrade}\r\n\r\n".encode()
    )
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")

    async def send(data: bytes) -> None:
        writer.write(data)

    async def receive() -> bytes:
        data = await reader.read(65536)
        assert data, "the kubelet hung up"
        return data

    socket = WebSocket(reader, writer)
    yield Forwarding(send, receive) if request.param == "spdy" else Forwarding(socket.send, socket.receive)
    writer.close()


async def test_one_session_carries_many_connections(forwarding: Forwarding, shouting: str) -> None:
    for text in (b"ping", b"", b"x" * 300_000):
        assert await forwarding.connect(shouting, text) == (text.upper(), b"")


@pytest.mark.parametrize("port", ["1", "0", "70000", "-1", "x", ""])
async def test_a_port_without_a_listener_is_an_error_of_its_connection_alone(
    forwarding: Forwarding, shouting: str, port: str
) -> None:
    data, error = await forwarding.connect(port, b"")
    assert data == b""
    assert error.startswith(f"an error occurred forwarding {port}: ".encode())
    assert await forwarding.connect(shouting, b"ping") == (b"PING", b"")


async def test_a_reset_by_the_pod_ends_the_connection_with_an_error(
    forwarding: Forwarding, resetting: str, shouting: str
) -> None:
    data, error = await forwarding.connect(resetting, b"ping", last=False)
    assert data == b"" and error.startswith(f"an error occurred forwarding {resetting}: ".encode())
    assert await forwarding.connect(shouting, b"ping") == (b"PING", b"")


async def test_a_reset_by_the_client_ends_the_connection_to_the_pod(forwarding: Forwarding, shouting: str) -> None:
    assert await forwarding.connect(shouting, b"ping", last=False, reset=True) == (b"", b"")
    assert await forwarding.connect(shouting, b"ping") == (b"PING", b"")


async def test_a_session_reaches_no_other_pod_when_its_own_has_ended(
    forwarding: Forwarding, shouting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await forwarding.connect(shouting, b"ping") == (b"PING", b"")
    monkeypatch.setattr(Pods, "there", False)
    data, error = await forwarding.connect(shouting, b"ping")
    assert data == b"" and b"pod not found" in error


@pytest.mark.parametrize(
    ("path", "upgrade", "status"),
    [
        ("default/none", UPGRADES["spdy"], b"404"),
        ("other/one", UPGRADES["websocket"], b"404"),
        ("default/one", "Upgrade: websocket\r\nSec-WebSocket-Key: x", b"400"),
        ("default/one", "Upgrade: h2c", b"400"),
        ("default/one", "X: y", b"400"),
        ("default", UPGRADES["spdy"], b"404"),
    ],
)
async def test_requests_for_what_is_not_there_are_refused(
    kubelet: tuple[str, int], path: str, upgrade: str, status: bytes
) -> None:
    reader, writer = await asyncio.open_connection(*kubelet)
    writer.write(f"POST /portForward/{path} HTTP/1.1\r\nHost: x\r\n{upgrade}\r\n\r\n".encode())
    assert (await reader.read()).split()[1] == status
    writer.close()
