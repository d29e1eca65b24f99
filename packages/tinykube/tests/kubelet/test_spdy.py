"""The SPDY session of the server's side."""

from __future__ import annotations

import asyncio
import struct
import zlib

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
