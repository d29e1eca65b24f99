"""The SPDY session of the server's side."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.spdy_client import SpdyClient
from tinykube.kubelet.spdy import DICTIONARY, Session


def test_the_dictionary_is_that_of_the_draft():
    assert zlib.adler32(DICTIONARY) == 0xE3C6A7C2


async def test_streams_are_opened_read_written_and_closed():
    connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Future()
    listener = await asyncio.start_server(lambda r, w: connected.set_result((r, w)), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    ours = await connected
    session = Session(*ours)
    running = asyncio.create_task(session.run())
    client = SpdyClient()
    writer.write(client.open(1, streamtype="error") + client.open(3, streamtype="stdin"))
    streams = [await anext(aiter_) for aiter_ in [session.streams()] for _ in range(2)]
    assert [stream.headers for stream in streams] == [{"streamtype": "error"}, {"streamtype": "stdin"}]
    for number in (1, 3):
        kind, size = struct.unpack("!II", await reader.readexactly(8))
        assert kind == 0x80030002
        assert struct.unpack("!I", (await reader.readexactly(size))[:4])[0] == number
    writer.write(client.data(3, b"hello") + client.data(3, b"", last=True))
    assert (await streams[1].read(), await streams[1].read(), await streams[1].read()) == (b"hello", b"", b"")
    await streams[0].write(b"done")
    await streams[0].close()
    assert await reader.readexactly(20) == struct.pack("!II", 1, 4) + b"done" + struct.pack("!II", 1, 1 << 24)
    ping = struct.pack("!HHI", 0x8003, 6, 4) + b"ping"
    writer.write(ping)
    assert await reader.readexactly(12) == ping
    writer.close()
    await asyncio.wait_for(running, 5)
    ours[1].close()
    listener.close()


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Session, asyncio.Task[None], asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield a session that runs, and its client's side."""
    pair: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Future()
    listener = await asyncio.start_server(lambda r, w: pair.set_result((r, w)), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    ours = await pair
    session = Session(*ours)
    running = asyncio.create_task(session.run())
    yield session, running, reader, writer
    for one in (writer, ours[1]):
        one.transport.abort()
    await asyncio.wait_for(running, 60)
    for one in (writer, ours[1]):
        await asyncio.gather(one.wait_closed(), return_exceptions=True)
    listener.close()


async def test_a_session_reads_no_further_than_its_streams_are_read():
    sent = 64 << 20
    async with connected() as (session, running, _, writer):
        client = SpdyClient()
        writer.write(client.open(1, streamtype="stdin"))
        stream = await anext(session.streams())
        for _ in range(sent >> 20):
            writer.write(client.data(1, b"x" * (1 << 20)))
        flushed, _ = await asyncio.wait({asyncio.create_task(writer.drain())}, timeout=1)
        assert not flushed
        read = 0
        while read < sent:
            read += len(await stream.read())
        assert not running.done()


async def test_a_session_that_nobody_reads_ends_with_its_client():
    async with connected() as (session, running, _, writer):
        client = SpdyClient()
        writer.write(client.open(1, streamtype="stdin") + client.data(1, b"x" * (3 << 20)))
        stream = await anext(session.streams())
        await writer.drain()
        writer.close()
        await asyncio.wait_for(running, 60)
        assert stream.gone.is_set()


async def test_a_stream_that_is_reset_or_forgotten_takes_no_room():
    async with connected() as (session, _, reader, writer):
        client = SpdyClient()
        streams = session.streams()
        for number in (1, 3):
            writer.write(client.open(number, streamtype="data") + client.data(number, b"x" * (1 << 20)))
            stream = await anext(streams)
            if number == 1:
                writer.write(struct.pack("!HHIII", 0x8003, 3, 8, number, 5))  # RST_STREAM
                await stream.gone.wait()
                assert await stream.read() == b""
            else:
                stream.forget()
        ping = struct.pack("!HHI", 0x8003, 6, 4) + b"ping"
        writer.write(client.data(3, b"late") + ping)
        await reader.readuntil(ping)


@pytest.mark.parametrize("what", ["headers", "control", "ping", "streams", "twice"])
async def test_what_would_fill_memory_ends_the_session(what: str):
    client = SpdyClient()
    sent = {
        "headers": lambda: client.open(1, name="x" * (1 << 20)),
        "control": lambda: struct.pack("!HHI", 0x8003, 4, 1 << 20) + b"x" * (1 << 20),
        "ping": lambda: struct.pack("!HHI", 0x8003, 6, 5) + b"pings",
        "streams": lambda: b"".join(client.open(number) for number in range(1, 2400, 2)),
        "twice": lambda: client.open(1) + client.open(1),
    }[what]()
    async with connected() as (_, running, _, writer):
        writer.write(sent)
        await asyncio.wait_for(asyncio.shield(running), 60)
