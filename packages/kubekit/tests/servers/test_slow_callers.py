"""A caller that is slow at any point of a connection blocks no other one, and takes bounded memory and files."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import resource
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection

from kubekit import http_server, rpc_server
from kubekit.http_server import HttpAnswer, serving
from kubekit.kube.server_certificates import temporary
from kubekit.rpc import call, framed
from kubekit.server_tls import ServerTls
from tests.support.until import until

MEBIBYTE = 1 << 20
LARGE = b"x" * (16 * MEBIBYTE)  # more than the kernel takes for a caller that does not read
HELLO = b"GET /hello HTTP/1.1\r\n\r\n"
GET_LARGE = b"GET /large HTTP/1.1\r\n\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HALF_CLIENT_HELLO = bytes.fromhex("160301020001000001fc0303")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def server(**more: Any) -> AsyncIterator[int]:
    async def hello() -> HttpAnswer:
        return HttpAnswer(b"hello")

    async def large() -> HttpAnswer:
        return HttpAnswer(LARGE)

    async def echo(body: bytes) -> HttpAnswer:
        return HttpAnswer(b"%d bytes" % len(body))

    async with serving({"/hello": hello, "/large": large}, "127.0.0.1", 0, posts={"/echo": echo}, **more) as port:
        yield port


@pytest.fixture
async def opened() -> AsyncIterator[list[asyncio.StreamWriter]]:
    found: list[asyncio.StreamWriter] = []
    yield found
    for writer in found:
        writer.transport.abort()


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest) -> ssl.SSLContext | None:
    if request.param == "plain":
        return None
    served = ServerTls()
    first = temporary(datetime.datetime.now(datetime.UTC))
    served.take(first.certificate, first.key)
    return served.context


async def connect(port: int, opened: list[asyncio.StreamWriter], sent: bytes = b"", *, tls: bool = False) -> Streams:
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting if tls else None)
    opened.append(writer)
    writer.write(sent)
    return reader, writer


async def served(port: int, opened: list[asyncio.StreamWriter], *, tls: bool = False) -> None:
    reader, _ = await connect(port, opened, HELLO, tls=tls)
    assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")


async def ended(streams: Streams) -> bytes:
    """Return the bytes that a caller still receives until its connection ends."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        return await streams[0].read()
    return b""


@pytest.mark.parametrize("sent", [b"", HALF_CLIENT_HELLO, b"GET /hel"])
async def test_of_too_many_the_first_gives_way_also_before_its_handshake(
    opened: list[asyncio.StreamWriter], tls: ssl.SSLContext | None, sent: bytes
) -> None:
    async with server(tls=tls, most_connections=3) as port:
        slow = [await connect(port, opened, sent) for _ in range(3)]
        await served(port, opened, tls=tls is not None)
        assert await ended(slow[0]) == b""
        await served(port, opened, tls=tls is not None)
        assert await ended(slow[1]) == b""


async def test_of_too_many_one_that_does_not_read_gives_way(
    opened: list[asyncio.StreamWriter], tls: ssl.SSLContext | None
) -> None:
    async with server(tls=tls, most_connections=3) as port:
        slow = [await connect(port, opened, GET_LARGE, tls=tls is not None) for _ in range(3)]
        for reader, _ in slow:
            assert (await reader.readexactly(12)).startswith(b"HTTP/1.1 200")
        await served(port, opened, tls=tls is not None)
        assert len(await ended(slow[0])) < len(LARGE)


async def test_of_too_many_one_that_sends_no_body_gives_way(opened: list[asyncio.StreamWriter]) -> None:
    head = b"POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"
    async with server(most_connections=3) as port:
        slow = [await connect(port, opened, head) for _ in range(3)]
        for reader, _ in slow:
            assert b"100" in await reader.readuntil(b"\r\n\r\n")
        await served(port, opened)
        assert await ended(slow[0]) == b""


async def test_a_request_in_work_is_never_given_up(opened: list[asyncio.StreamWriter]) -> None:
    at_work, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> HttpAnswer:
        at_work.set()
        await go_on.wait()
        return HttpAnswer(b"hello")

    async with serving({"/hello": work}, "127.0.0.1", 0, most_connections=1) as port:
        first, _ = await connect(port, opened, HELLO)
        await at_work.wait()
        second, _ = await connect(port, opened, HELLO)
        go_on.set()
        assert (await first.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
        assert (await second.readuntil(b"hello")).startswith(b"HTTP/1.1 200")


async def test_a_caller_that_does_not_read_is_cut_off_in_time(
    opened: list[asyncio.StreamWriter], monkeypatch: pytest.MonkeyPatch, tls: ssl.SSLContext | None
) -> None:
    monkeypatch.setattr(http_server, "READ_SECONDS", 0.2)
    async with server(tls=tls) as port:
        before = open_files()
        reader, writer = await connect(port, opened, GET_LARGE, tls=tls is not None)
        assert (await reader.readexactly(12)).startswith(b"HTTP/1.1 200")
        # Its own end stays open: only the server's end goes.
        await until(lambda: open_files() == before + 1, seconds=60)
        assert not writer.transport.is_closing()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_answers_that_nobody_reads_take_bounded_memory(
    opened: list[asyncio.StreamWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MOST_ANSWERS", 2 * len(LARGE))
    async with server() as port:
        slow = [await connect(port, opened, GET_LARGE) for _ in range(4)]
        for reader, _ in slow:
            assert (await reader.readexactly(12)).startswith(b"HTTP/1.1 200")
        got = [len(await ended(streams)) for streams in slow[:2]]
        assert max(got) < len(LARGE)
        await served(port, opened)
        for reader, _ in slow[2:]:
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(len(LARGE))


async def test_small_bodies_that_do_not_end_take_bounded_memory(
    opened: list[asyncio.StreamWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MOST_BODIES", 2 * MEBIBYTE)
    head = f"POST /echo HTTP/1.1\r\nContent-Length: {MEBIBYTE}\r\n\r\n".encode()
    async with server() as port:
        slow = []
        for _ in range(4):
            slow.append(await connect(port, opened, head + b"x" * (MEBIBYTE - 1)))
            await slow[-1][1].drain()
        for streams in slow[:2]:
            assert b" 408 " in await ended(streams)
        for reader, writer in slow[2:]:
            writer.write(b"x")
            assert b" 200 " in await reader.readuntil(b"bytes")


FEW_FILES = """
import asyncio, resource, sys
from kubekit.http_server import HttpAnswer, serving
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
used = [open("/dev/null") for _ in range(int(sys.argv[1]))]
async def hello():
    return HttpAnswer(b"hello")
async def main():
    async with serving({"/hello": hello}, "127.0.0.1", 0) as port:
        print(port, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.parametrize("used", [0, 45])
async def test_callers_do_not_take_all_files_of_the_process_and_need_none_to_be_left(
    opened: list[asyncio.StreamWriter], used: int
) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > 200, "the test itself opens more than a hundred connections"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", FEW_FILES, str(used)), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        for _ in range(100):
            await connect(port, opened)
        await served(port, opened)
        # Its own files are about ten; of the 64, half are for callers.
        assert used or len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 50
    finally:
        process.kill()
        await process.wait()


async def test_a_socket_of_grpc_answers_beside_slow_callers(opened: list[asyncio.StreamWriter], tmp_path: Path) -> None:
    async def large(request: bytes) -> AsyncIterator[bytes]:
        yield bytes(3 * MEBIBYTE)

    socket = tmp_path / "s"
    async with rpc_server.serving({"/t.T/Large": large}, socket):
        for sent in (b"", b"PRI * HTTP/2", PREFACE):
            for _ in range(2):
                _, writer = await asyncio.open_unix_connection(socket)
                opened.append(writer)
                writer.write(sent)
        unread = H2Connection(H2Configuration(client_side=True))
        unread.initiate_connection()
        head = [(":method", "POST"), (":scheme", "http"), (":path", "/t.T/Large"), (":authority", "x")]
        unread.send_headers(1, head)
        unread.send_data(1, framed(b""), end_stream=True)
        opened[0].write(unread.data_to_send())
        assert len(await call(socket, "/t.T/Large", b"", timeout=60)) == 3 * MEBIBYTE
