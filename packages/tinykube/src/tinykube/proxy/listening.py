"""The sockets of this machine, as the kernel lists them: addresses that are listened on, and ends of connections."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ALL_ADDRESSES: Final = frozenset(("0.0.0.0", "::"))
_TABLES: Final = {
    "TCP": (Path("/proc/net/tcp"), Path("/proc/net/tcp6")),
    "UDP": (Path("/proc/net/udp"), Path("/proc/net/udp6")),
}
_LISTENS: Final = {"TCP": "0A", "UDP": "07"}  # states of sockets that wait for any client
_WORD: Final = 8  # hexadecimal digits; the kernel prints each word of an address in the machine's byte order


Place = tuple[str, int]  # address, port


class KernelSocket(NamedTuple):
    """A row of a table of the kernel. Format: proc_net(5); `state` in hexadecimal digits."""

    local: Place
    remote: Place
    state: str
    inode: int


def listening(port: int, protocol: str = "TCP") -> set[str]:
    """Return the addresses of `port` that are listened on. Raises OSError."""
    return {address for table in _tables(protocol) for address in parse(table, port, protocol)}


def parse(table: str, port: int, protocol: str = "TCP") -> set[str]:
    """Return the addresses of `port` that are listened on by a table of the kernel."""
    rows = (_row(line) for line in table.splitlines()[1:])
    return {row.local[0] for row in rows if row.state == _LISTENS[protocol] and row.local[1] == port}


def client_socket(client: Place, server: Place, protocol: str) -> int:
    """Return the inode of the socket from which a client speaks to a server; 0 for none. Raises OSError."""
    found = (find_client(table, client, server, protocol) for table in _tables(protocol))
    return next((inode for inode in found if inode), 0)


def find_client(table: str, client: Place, server: Place, protocol: str) -> int:
    """Return the inode of a client's socket in a table of the kernel; 0 for none.

    A socket of UDP need not be connected, and may be bound to all addresses.
    """
    locals_, remotes = {client}, {server}
    if protocol == "UDP":
        locals_ |= {(address, client[1]) for address in ALL_ADDRESSES}
        remotes |= {(address, 0) for address in ALL_ADDRESSES}
    ending = f":{client[1]:04X}"
    rows = (_row(line) for line in table.splitlines()[1:] if line.split(None, 2)[1].endswith(ending))
    return next((row.inode for row in rows if row.local in locals_ and row.remote in remotes and row.inode), 0)


def _tables(protocol: str) -> Iterator[str]:
    return (table.read_text() for table in _TABLES[protocol] if table.exists())


def _row(line: str) -> KernelSocket:
    _, local, remote, state, _, _, _, _, _, inode, *_ = line.split()
    return KernelSocket(_place(local), _place(remote), state, int(inode))


def _place(text: str) -> Place:
    address, _, number = text.partition(":")
    return _address(address), int(number, 16)


def _address(text: str) -> str:
    words = (text[start : start + _WORD] for start in range(0, len(text), _WORD))
    address = ipaddress.ip_address(b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
