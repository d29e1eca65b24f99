"""The server's side of a WebSocket (RFC 6455), as far as exec streams need it: binary messages, ping, close."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import struct
from typing import Final

from tinykube.kubelet.hangup import hung_up

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_LONGEST: Final = 1 << 24  # bytes of a message
_LONGEST_CONTROL: Final = 125  # RFC 6455, 5.5
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


class Closed(Exception):
    """The other side has gone."""


def accept_key(key: str) -> str:
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest()).decode()


def frame(opcode: int, data: bytes) -> bytes:
    """One unmasked, final frame."""
    size = len(data)
    if size < 126:
        head = struct.pack("!BB", 0x80 | opcode, size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", 0x80 | opcode, 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 127, size)
    return head + data


class WebSocket:
    """After the handshake. `receive` is for one task, `send` for any."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> bytes:
        """The next message. Raises Closed, also for one of more than 16 MiB."""
        whole = bytearray()
        try:
            while True:
                final, opcode, data = await self._frame()
                if opcode == CLOSE:
                    self._writer.write(frame(CLOSE, data[:2]))
                    raise Closed
                if opcode == PING:
                    self._writer.write(frame(PONG, data))
                    await self._writer.drain()
                elif opcode in (CONTINUATION, TEXT, BINARY):
                    if len(whole) + len(data) > _LONGEST:
                        raise Closed
                    whole += data
                    if final:
                        return bytes(whole)
                    await asyncio.sleep(0)  # let other tasks run between many small frames
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Closed from error

    async def _frame(self) -> tuple[bool, int, bytes]:
        first, second = await self._reader.readexactly(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", await self._reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await self._reader.readexactly(8))
        control = first & 0x08
        if size > _LONGEST or (control and (size > _LONGEST_CONTROL or not first & 0x80)):
            raise Closed
        mask = await self._reader.readexactly(4) if second & 0x80 else b""
        data = await self._reader.readexactly(size)
        if mask:
            key = (mask * (size // 4 + 1))[:size]
            data = (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")
        return bool(first & 0x80), first & 0x0F, data

    async def send(self, data: bytes, opcode: int = BINARY) -> None:
        """One message. Raises Closed."""
        # NB: writing to a closed connection is a RuntimeError with uvloop, which the API server runs on.
        if self._writer.is_closing():
            raise Closed
        try:
            self._writer.write(frame(opcode, data))
            await self._writer.drain()
        except ConnectionError as error:
            raise Closed from error

    async def hung_up(self) -> None:
        """Return when the other side has disconnected, even if its bytes are unread."""
        await hung_up(self._writer)

    async def close(self) -> None:
        if self._writer.is_closing():
            return
        try:
            self._writer.write(frame(CLOSE, struct.pack("!H", 1000)))
            await self._writer.drain()
        except ConnectionError:
            return
