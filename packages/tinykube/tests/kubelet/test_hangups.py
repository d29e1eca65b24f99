"""Clients that leave, and programs that do not read: neither holds up a kubelet, nor leaves anything behind."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.until import until
from tinykube.kubelet.execute import serve_exec
from tinykube.kubelet.hangup import end
from tinykube.kubelet.server import KubeletBackend, KubeletServer, LogFile
from tinykube.kubelet.websocket import BINARY, PING, Closed, WebSocket, frame

LOCALHOST = "127.0.0.1"
MANY_LINES = b"\x00" + b"a line that nobody reads\n" * 40_000  # 1 MB of input
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(serve: Callable[[WebSocket], Awaitable[None]]) -> AsyncIterator[tuple[WebSocket, Stream]]:
    """Yield a client's side of a connection that `serve` has the other side of; it has to end with the client."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(WebSocket(reader, writer))
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()
        over.set_result(None)

    server = await asyncio.start_server(handle, LOCALHOST, 0)
    stream = await asyncio.open_connection(*server.sockets[0].getsockname())
    yield WebSocket(*stream), stream
    end(stream[1])
    await asyncio.wait_for(over, 60)
    with suppress(ConnectionError):
        await stream[1].wait_closed()
    server.close()


@pytest.mark.parametrize("tty", [True, False], ids=["terminal", "pipe"])
async def test_a_command_that_does_not_read_holds_up_nobody_and_ends_with_its_client(tty: bool) -> None:
    async def serve(socket: WebSocket) -> None:
        await serve_exec(socket, ["sh", "-c", "echo up; exec sleep 1000"], stdin=True, stderr=False, tty=tty)

    async with connected(serve) as (socket, _):
        assert (await socket.receive()).startswith(b"\x01up")

        async def send() -> None:
            for _ in range(30):  # more than a terminal, a pipe and the sockets hold
                await socket.send(MANY_LINES)

        sending = asyncio.create_task(send())
        taken, _ = await asyncio.wait({sending}, timeout=1)
        assert not taken
        sending.cancel()


async def test_a_terminal_takes_all_that_its_program_reads_in_time() -> None:
    async def serve(socket: WebSocket) -> None:
        script = "stty raw -echo; echo up; head -c 300000 | wc -c"
        await serve_exec(socket, ["sh", "-c", script], stdin=True, stderr=False, tty=True)

    async with connected(serve) as (socket, _):
        assert b"up" in await socket.receive()
        for _ in range(30):
            await socket.send(b"\x00" + b"x" * 10_000)
        while b"300000" not in await socket.receive():
            pass


@pytest.mark.parametrize(
    "sent",
    [
        frame(PING, b"x" * 126),
        struct.pack("!BB", PING, 0),
        (struct.pack("!BBQ", BINARY, 127, 9 << 20) + b"x" * (9 << 20)) * 2,
    ],
    ids=["a long ping", "a ping in parts", "a message of 18 MiB in parts"],
)
async def test_frames_that_would_fill_memory_end_the_connection(sent: bytes) -> None:
    refused = asyncio.Event()

    async def serve(socket: WebSocket) -> None:
        with pytest.raises(Closed):
            await socket.receive()
        refused.set()

    async with connected(serve) as (_, (_, writer)):
        writer.write(sent)
        await asyncio.wait_for(refused.wait(), 60)


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[tuple[str, int]]:
    """A kubelet with a container that runs and writes nothing."""
    log = tmp_path / "0.log"
    log.write_text("")

    def none(*_: Any) -> Any:
        raise AssertionError

    backend = KubeletBackend(lambda *_: LogFile(log, lambda: True), none, none, lambda: b"{}", lambda: 0.0)
    server = KubeletServer(backend, "")
    yield LOCALHOST, await server.start()
    await server.stop()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_who_follows_a_quiet_log_and_leaves_is_forgotten(logs: tuple[str, int]) -> None:
    before = open_files()
    clients = []
    for _ in range(20):
        reader, writer = await asyncio.open_connection(*logs)
        writer.write(b"GET /containerLogs/default/one/c?follow=true HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        clients.append(writer)
    for writer in clients:
        writer.close()
        await writer.wait_closed()
    await until(lambda: open_files() <= before, seconds=60, seen=open_files)
