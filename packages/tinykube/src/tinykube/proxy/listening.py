"""The addresses that programs of this machine listen on, as the kernel lists them."""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path
from typing import Final

ALL_ADDRESSES: Final = frozenset(("0.0.0.0", "::"))
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS: Final = "0A"
_WORD: Final = 8  # hexadecimal digits; the kernel prints each word of an address in the machine's byte order


def listening(port: int) -> set[str]:
    """Return the addresses of `port` that are listened on. Raises OSError."""
    return {address for table in _TABLES if table.exists() for address in parse(table.read_text(), port)}


def parse(table: str, port: int) -> set[str]:
    """Return the addresses of `port` that are listened on by a table of the kernel."""
    found = set()
    for line in table.splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        address, _, number = local.partition(":")
        if state == _LISTENS and int(number, 16) == port:
            found.add(_address(address))
    return found


def _address(text: str) -> str:
    words = (text[start : start + _WORD] for start in range(0, len(text), _WORD))
    address = ipaddress.ip_address(b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
