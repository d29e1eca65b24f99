"""The soname of a shared library: the name under which programs ask for it.

Format: System V ABI, ELF-64, little-endian (elf(5)). Only the headers, the dynamic section and one string are read: a
driver's libraries have up to a hundred megabytes.
"""

from __future__ import annotations

import os
import struct

from gpuplane.host import Host
from gpuplane.host.walk import locate

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")
_LOAD, _DYNAMIC = 1, 2
_STRTAB, _SONAME = 5, 14
_LONGEST = 255


def soname(host: Host, path: str) -> str:
    """The soname; "" when the file has none, or is no such library."""
    try:
        with locate(host.root, path) as place:
            handle = os.open(
                place.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=place.directory
            )
            try:
                return _soname(handle)
            finally:
                os.close(handle)
    except (OSError, struct.error, UnicodeDecodeError):
        return ""


def _soname(handle: int) -> str:
    head = _HEADER.unpack(os.pread(handle, _HEADER.size, 0))
    if head[0][:6] != b"\x7fELF\x02\x01":
        return ""
    table, size, count = head[5], head[9], head[10]
    if size != _SEGMENT.size:
        return ""
    segments = list(_SEGMENT.iter_unpack(os.pread(handle, size * count, table)))
    dynamic = next((s for s in segments if s[0] == _DYNAMIC), None)
    if dynamic is None:
        return ""
    data = os.pread(handle, min(dynamic[5], 1 << 16), dynamic[2])
    entries = dict(reversed(list(_ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]))))
    if _SONAME not in entries or _STRTAB not in entries:
        return ""
    address = entries[_STRTAB] + entries[_SONAME]
    for kind, _, offset, virtual, _, length, _, _ in segments:
        if kind == _LOAD and virtual <= address < virtual + length:
            found = os.pread(handle, _LONGEST, offset + address - virtual)
            return found.partition(b"\0")[0].decode()
    return ""
