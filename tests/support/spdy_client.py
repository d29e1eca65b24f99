"""The client's half of a SPDY/3.1 session, enough to test the server's."""

from __future__ import annotations

import struct
import zlib

from tinykube.kubelet.spdy import DICTIONARY

FIN = 1 << 24


class SpdyClient:
    """Packs the frames that a client sends; what comes back is read with `frames`."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def open(self, number: int, **headers: str) -> bytes:
        """Return the frame that opens stream `number`, which is odd."""
        block = struct.pack("!I", len(headers))
        for name, value in headers.items():
            block += struct.pack("!I", len(name)) + name.encode() + struct.pack("!I", len(value)) + value.encode()
        packed = self._deflate.compress(block) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        body = struct.pack("!IIH", number, 0, 0) + packed
        return struct.pack("!HHI", 0x8003, 1, len(body)) + body

    @staticmethod
    def data(number: int, data: bytes, *, last: bool = False) -> bytes:
        """Return a frame of data; the last one closes the client's half of the stream."""
        return struct.pack("!II", number, (FIN if last else 0) | len(data)) + data


def frames(data: bytes) -> tuple[dict[int, bytes], set[int], bytes]:
    """Return the data of each stream, the streams that have ended, and the bytes after the last whole frame."""
    received: dict[int, bytes] = {}
    ended: set[int] = set()
    while len(data) >= 8:
        first, second = struct.unpack("!II", data[:8])
        size = second & 0xFFFFFF
        if len(data) < 8 + size:
            break
        if not first & 0x80000000:
            received[first] = received.get(first, b"") + data[8 : 8 + size]
        if not first & 0x80000000 and second & FIN:
            ended.add(first)
        if first & 0xFFFF == 3 and first & 0x80000000:  # RST_STREAM
            ended.add(struct.unpack("!I", data[8:12])[0])
        data = data[8 + size :]
    return received, ended, data
