"""Takes symbol tables and debug information off shared libraries, as `strip` does, without the tool.

A loader reads the program headers only. What lies behind the last segment, section headers included, is for linkers and
debuggers, and wheels carry a lot of it: 12 of the 14 MB of uvloop.
Format: elf(5).
"""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian: both machines that we build for


def without_symbols(data: bytes) -> bytes:
    """The library up to the end of its last segment; `data` itself where it is no ELF file or makes no sense."""
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        return data
    header = list(_HEADER.unpack_from(data))
    start, size, count = header[5], header[9], header[10]
    if size != _SEGMENT.size or start + size * count > len(data):
        return data
    end = start + size * count
    for number in range(count):
        _, _, offset, _, _, in_file, _, _ = _SEGMENT.unpack_from(data, start + number * size)
        end = max(end, offset + in_file)
    if end > len(data):
        return data
    header[6] = header[11] = header[12] = header[13] = 0  # no section headers
    return _HEADER.pack(*header) + data[_HEADER.size : end]


def strip(folder: Path, pattern: str = "*.so*") -> None:
    """Strips the extension modules and libraries below a folder, or the files of another pattern, in place."""
    for path in folder.rglob(pattern):
        if path.is_file() and not path.is_symlink():
            path.write_bytes(without_symbols(path.read_bytes()))
