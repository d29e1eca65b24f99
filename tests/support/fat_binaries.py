"""Fat binaries as nvcc puts them into programs: a header, and an entry for each architecture, plain or compressed."""

from __future__ import annotations

import struct

MAGIC = 0xBA55ED50
PTX, MACHINE_CODE = 1, 2
_COMPRESSED = 0x2000


def lz4(data: bytes) -> bytes:
    """A block of LZ4. Only a run of one byte at the end becomes a reference; all before it is written as it is."""
    run = len(data) - len(data.rstrip(data[-1:]))
    if run < 32:
        return _sequence(data)
    # The format ends with bytes as they are.
    return _sequence(data[: 1 - run], run - 13, 1) + _sequence(data[-12:])


def _sequence(literals: bytes, match: int = 0, distance: int = 0) -> bytes:
    length, copies = min(len(literals), 15), min(max(match - 4, 0), 15)
    head = bytes([length << 4 | copies]) + _more(len(literals))
    return head + literals + (struct.pack("<H", distance) + _more(match - 4) if match else b"")


def _more(length: int) -> bytes:
    return b"\xff" * ((length - 15) // 255) + bytes([(length - 15) % 255]) if length >= 15 else b""


def entry(text: bytes, architecture: int, kind: int = PTX, *, compressed: bool = False) -> bytes:
    body = lz4(text) if compressed else text
    padded = body + bytes(-len(body) % 8)
    header = struct.pack(
        "<HHIIIIIHHIIIQQQ",
        *(kind, 0x101, 64, len(padded), 0, len(body) if compressed else 0, 0, 5, 6, architecture, 0, 0),
        *(0x41 | (_COMPRESSED if compressed else 0), 0, len(text) if compressed else 0),
    )
    return header + padded


def fat_binary(*entries: bytes) -> bytes:
    everything = b"".join(entries)
    return struct.pack("<IHHQ", MAGIC, 1, 16, len(everything)) + everything
