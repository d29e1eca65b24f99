"""The messages of an NRI socket: ttrpc messages, cut into frames of numbered connections. Pure.

    frame      connection (4 bytes), length (4), then that many bytes of the connection
    message    length (4), stream (4), kind (1), flags (1), then that many bytes

All numbers are big-endian. Frames and messages know nothing of each other: a message may lie in several frames and a
frame may hold several messages.

NB: frames that we send carry at most 4,096 bytes, for the runtime reads each with a buffer of that size. It may itself
send larger ones.

Source: containerd/nri, pkg/net/multiplex; containerd/ttrpc, PROTOCOL.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from kubekit.errors import Terminal

PLUGIN: Final = 1
"""The connection on which the runtime calls the plugin."""
RUNTIME: Final = 2
"""The connection on which the plugin calls the runtime."""
FRAME_BYTES: Final = 4096
LONGEST: Final = 4 << 20
"""Bytes of a message without its head."""

_FRAME: Final = struct.Struct(">II")
_MESSAGE: Final = struct.Struct(">IIBB")


class Malformed(Terminal):
    """The other side does not speak the protocol; its connection is of no use any more."""


class FrameKind(IntEnum):
    REQUEST = 1
    RESPONSE = 2
    DATA = 3


class TtrpcMessage(NamedTuple):
    """One ttrpc message. `kind` is a number of `FrameKind`; `flags` are 0 for calls with one request and one answer."""

    stream: int
    kind: int
    flags: int
    data: bytes


def framed(connection: int, message: TtrpcMessage) -> bytes:
    """The bytes that bring a message to the other side's connection. Raises Malformed when it is too long for it."""
    if len(message.data) > LONGEST:
        raise Malformed(f"a message of {len(message.data)} bytes, and {LONGEST} are the most", where="NRI")
    whole = _MESSAGE.pack(len(message.data), message.stream, message.kind, message.flags) + message.data
    parts = (whole[at : at + FRAME_BYTES] for at in range(0, len(whole), FRAME_BYTES))
    return b"".join(_FRAME.pack(connection, len(part)) + part for part in parts)


class FrameReader:
    """Puts together what arrives, however it is cut. Each connection has one message in memory at most.

    Args:
        connections: those that are spoken; what comes on others is skipped, as the runtime does.
    """

    def __init__(self, *connections: int) -> None:
        self._pending = bytearray()
        self._streams = {connection: bytearray() for connection in connections}

    def feed(self, data: bytes) -> Iterator[tuple[int, TtrpcMessage]]:
        """(connection, message) for each message that is whole now. Raises Malformed for one that is too long."""
        self._pending += data
        while len(self._pending) >= _FRAME.size:
            connection, length = _FRAME.unpack_from(self._pending)
            if length > LONGEST + _MESSAGE.size:
                raise Malformed(f"a frame of {length} bytes", where="NRI")
            end = _FRAME.size + length
            if len(self._pending) < end:
                return
            stream = self._streams.get(connection)
            if stream is not None:
                stream += self._pending[_FRAME.size : end]
            del self._pending[:end]
            if stream is not None:
                for message in _whole(stream):
                    yield connection, message


def _whole(stream: bytearray) -> Iterator[TtrpcMessage]:
    while len(stream) >= _MESSAGE.size:
        length, number, kind, flags = _MESSAGE.unpack_from(stream)
        if length > LONGEST:
            raise Malformed(f"a message of {length} bytes", where="NRI")
        end = _MESSAGE.size + length
        if len(stream) < end:
            return
        data = bytes(stream[_MESSAGE.size : end])
        del stream[:end]
        yield TtrpcMessage(number, kind, flags, data)
