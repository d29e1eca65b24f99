"""SPDY/3.1 (draft-mbelshe-httpbis-spdy-00) from the server's side, as far as kubectl's exec and port-forward use it.

Streams are opened by the client, named by their headers; windows are not limited (neither does the Go library of all
clients limit them), so WINDOW_UPDATE is ignored. One zlib stream in each direction carries all headers.

Invariant: a client cannot fill memory. A session reads no further while its streams hold _MOST_HELD unread bytes. It
ends when its client opens too many streams, or sends headers or control frames that are too long.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from kubekit.kube.tasks import first_of
from tinykube.kubelet.hangup import hung_up

_VERSION: Final = 3
_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING, _GOAWAY, _HEADERS = 1, 2, 3, 6, 7, 8
_FIN: Final = 1
_MAX_FRAME: Final = 1 << 24
_PIECE: Final = 1 << 16  # bytes of a frame's data that are passed on together
_MOST_HELD: Final = 1 << 20
_LONGEST_CONTROL: Final = 1 << 16
_LONGEST_HEADERS: Final = 1 << 16
_PING_BYTES: Final = 4
_MOST_STREAMS: Final = 1000
_WORDS: Final = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie "
    "keep-alive origin"
)
_TAIL: Final = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    "403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    "text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
#: The dictionary of the header compression, section 2.6.10.1 of the draft.
DICTIONARY: Final = (
    b"".join(struct.pack("!I", len(word)) + word.replace("_", " ").encode() for word in _WORDS.split()) + _TAIL.encode()
)


class SpdyStream:
    """One stream; `read` gives data until the client has closed its half.

    `gone` is set when the client has reset the stream, and at the end of the session.
    """

    def __init__(self, session: Session, number: int, headers: dict[str, str]) -> None:
        self.number = number
        self.headers = headers
        self.gone = asyncio.Event()
        self.received_fin = False
        self.sent_fin = False
        self._session = session
        self._arrived: deque[bytes] = deque()
        self._changed = asyncio.Event()

    def arrive(self, data: bytes) -> None:
        self._arrived.append(data)
        self._changed.set()

    def end(self) -> None:
        """The client's half is closed."""
        self.received_fin = True
        self._changed.set()

    def drop(self) -> int:
        """Forget what is unread; return how many bytes that are."""
        size = sum(map(len, self._arrived))
        self._arrived.clear()
        return size

    async def read(self) -> bytes:
        """The next piece; empty at the end."""
        while not self._arrived:
            if self.received_fin:
                return b""
            self._changed.clear()
            await self._changed.wait()
        data = self._arrived.popleft()
        self._session.release(len(data))
        return data

    async def write(self, data: bytes) -> None:
        """Raises ConnectionError when the client has gone, or reset the stream."""
        if self.gone.is_set():
            raise ConnectionResetError("the client has reset the stream")
        await self._session.send_data(self.number, data)

    async def close(self) -> None:
        """Closes our half."""
        if not self.sent_fin and not self.gone.is_set():
            self.sent_fin = True
            await self._session.send_data(self.number, b"", _FIN)
            self._session.settle(self)

    def reset(self) -> None:
        """Ends the stream in both directions, as cancelled."""
        if not self.gone.is_set():
            self._session.send_control(_RST_STREAM, struct.pack("!II", self.number, 5))
            self.forget()

    def forget(self) -> None:
        """Drop what is unread, and what the client still sends."""
        self._session.forget(self)


class Session:
    """A connection after the upgrade. `streams` yields them as the client opens them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._deflate = zlib.compressobj(zdict=DICTIONARY)
        self._streams: dict[int, SpdyStream] = {}
        self._opened: asyncio.Queue[SpdyStream | None] = asyncio.Queue(_MOST_STREAMS + 1)
        self._held = 0  # unread bytes of all streams
        self._released = asyncio.Event()

    async def streams(self) -> AsyncIterator[SpdyStream]:
        while (stream := await self._opened.get()) is not None:
            yield stream

    async def run(self) -> None:
        """Reads frames until the client goes; then every stream ends."""
        try:
            while await self._frame():
                pass
        except (asyncio.IncompleteReadError, ConnectionError, zlib.error, struct.error):
            pass  # the client went away or speaks something else: the session is over either way
        finally:
            for stream in self._streams.values():
                stream.end()
                stream.gone.set()
            self._streams.clear()
            self._opened.put_nowait(None)  # there is room for it: see _open

    def release(self, size: int) -> None:
        self._held -= size
        self._released.set()

    def settle(self, stream: SpdyStream) -> None:
        """Forget a stream when both halves are closed."""
        if stream.received_fin and stream.sent_fin:
            self._streams.pop(stream.number, None)

    def forget(self, stream: SpdyStream) -> None:
        """End a stream with all that is unread of it."""
        self._streams.pop(stream.number, None)
        self.release(stream.drop())
        stream.end()
        stream.gone.set()

    async def _frame(self) -> bool:
        first, flags_length = struct.unpack("!II", await self._reader.readexactly(8))
        flags, length = flags_length >> 24, flags_length & 0xFFFFFF
        if not first & 0x80000000:
            await self._data(first, flags, length)
            return True
        if length > _LONGEST_CONTROL:
            raise ConnectionAbortedError("a control frame is too long")
        body = await self._reader.readexactly(length)
        kind: int = first & 0xFFFF
        if kind == _SYN_STREAM:
            await self._open(body, flags)
        elif kind == _HEADERS:
            self._headers(body[4:])  # keeps the decompressor in step
        elif kind == _RST_STREAM:
            stream = self._streams.get(struct.unpack("!I", body[:4])[0])
            if stream is not None:
                self.forget(stream)
        elif kind == _PING:
            if length != _PING_BYTES:
                raise ConnectionAbortedError("a ping has four bytes")
            self.send_control(_PING, body)
            await self._writer.drain()
        return kind != _GOAWAY

    async def _data(self, number: int, flags: int, length: int) -> None:
        while length:
            piece = await self._reader.read(min(length, _PIECE))
            if not piece:
                raise ConnectionResetError("the client left within a frame")
            length -= len(piece)
            await self._until_room()
            stream = self._streams.get(number)
            if stream is not None and not stream.received_fin:  # else it was reset while this came
                self._held += len(piece)
                stream.arrive(piece)
        stream = self._streams.get(number)
        if stream is not None and flags & _FIN:
            stream.end()
            self.settle(stream)

    async def _until_room(self) -> None:
        """Wait for readers of streams. Raises ConnectionError when the client leaves meanwhile."""
        while self._held >= _MOST_HELD:
            self._released.clear()
            if await first_of(self._released.wait(), hung_up(self._writer)) == 1:
                raise ConnectionResetError("the client left before all was read")

    async def _open(self, body: bytes, flags: int) -> None:
        number = struct.unpack("!I", body[:4])[0] & 0x7FFFFFFF
        headers = self._headers(body[10:])
        if number in self._streams or max(len(self._streams), self._opened.qsize()) >= _MOST_STREAMS:
            raise ConnectionAbortedError("too many streams, or one twice")
        stream = self._streams[number] = SpdyStream(self, number, headers)
        if flags & _FIN:
            stream.end()
        self.send_control(_SYN_REPLY, struct.pack("!I", number) + self._compressed({}))
        self._opened.put_nowait(stream)
        await self._writer.drain()

    def _headers(self, block: bytes) -> dict[str, str]:
        data = self._inflate.decompress(block, _LONGEST_HEADERS)
        if self._inflate.unconsumed_tail:
            raise zlib.error("the headers are too long")
        (count,) = struct.unpack_from("!I", data)
        at = 4
        texts: list[str] = []
        for _ in range(2 * count):
            (size,) = struct.unpack_from("!I", data, at)
            texts.append(data[at + 4 : at + 4 + size].decode("latin-1"))
            at += 4 + size
        return dict(zip(texts[::2], texts[1::2], strict=True))

    def _compressed(self, headers: dict[str, str]) -> bytes:
        block = struct.pack("!I", len(headers))
        for name, value in headers.items():
            block += struct.pack("!I", len(name)) + name.encode() + struct.pack("!I", len(value)) + value.encode()
        return self._deflate.compress(block) + self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def send_control(self, kind: int, body: bytes, flags: int = 0) -> None:
        if self._writer.is_closing():
            return  # the client has disconnected
        head = struct.pack("!HHI", 0x8000 | _VERSION, kind, flags << 24 | len(body))
        self._writer.write(head + body)

    async def send_data(self, number: int, data: bytes, flags: int = 0) -> None:
        # NB: writing to a closed connection is a RuntimeError with uvloop.
        if self._writer.is_closing():
            raise ConnectionResetError("the client has gone")
        for at in range(0, max(len(data), 1), _MAX_FRAME - 1):
            part = data[at : at + _MAX_FRAME - 1]
            self._writer.write(struct.pack("!II", number, flags << 24 | len(part)) + part)
        await self._writer.drain()

    async def close(self) -> None:
        self.send_control(_GOAWAY, struct.pack("!II", max(self._streams, default=0), 0))
        await self._writer.drain()
