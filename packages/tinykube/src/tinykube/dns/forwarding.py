"""Asks the machine's own name servers about names outside the cluster.

Messages are passed on as they are, by the same transport; only the end of a CNAME is a question of its own. The servers
are those of the machine's /etc/resolv.conf at that moment, which changes with the network that a laptop is in.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tinykube.dns.wire import Name, Record, Result, WireError, read_addresses, write_query

RESOLVER_FILE: Final = Path("/etc/resolv.conf")
_PORT: Final = 53
_SECONDS: Final = 2.0  # for each server: clients wait 5 s
_LENGTH: Final = struct.Struct("!H")
_HEADER_BYTES: Final = 12


def name_servers(text: str) -> list[str]:
    """Return the servers of a resolver's file."""
    rows = (line.split() for line in text.splitlines())
    return [row[1] for row in rows if len(row) > 1 and row[0] == "nameserver"]


class NameServers:
    """The machine's name servers, other than those at the addresses `own`."""

    def __init__(self, own: Iterable[str] = (), file: Path = RESOLVER_FILE, port: int = _PORT) -> None:
        self._own = frozenset(own)
        self._file = file
        self._port = port

    async def ask(self, message: bytes, *, stream: bool) -> bytes | None:
        """Return the answer of the first server that answers; None where none does."""
        try:
            servers = name_servers(self._file.read_text(errors="replace"))
        except OSError:
            return None
        for server in servers:
            if server in self._own:
                continue
            try:
                async with asyncio.timeout(_SECONDS):
                    call = _by_stream if stream else _by_datagram
                    return await call(server, self._port, message)
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                continue
        return None

    async def addresses(self, name: Name, kind: int) -> tuple[Result, list[Record]]:
        """Return the addresses of a name, with the CNAMEs on the way."""
        answer = await self.ask(write_query(secrets.randbelow(1 << 16), name, kind), stream=True)
        if answer is None:
            return Result.FAILED, []
        try:
            result, records = read_addresses(answer)
        except WireError:
            return Result.FAILED, []
        return result or Result.FINE, records


class _Datagram(asyncio.DatagramProtocol):
    """Waits for the answer to one message."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: object) -> None:
        if len(data) >= _HEADER_BYTES and data[:2] == self._message[:2] and not self.answer.done():
            self.answer.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc)


async def _by_datagram(server: str, port: int, message: bytes) -> bytes:
    # NB: each question has a socket of its own, connected and with a port of chance: no other host can answer it.
    loop = asyncio.get_running_loop()
    transport, waiting = await loop.create_datagram_endpoint(lambda: _Datagram(message), remote_addr=(server, port))
    try:
        transport.sendto(message)
        return await waiting.answer
    finally:
        transport.close()


async def _by_stream(server: str, port: int, message: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(server, port)
    try:
        writer.write(_LENGTH.pack(len(message)) + message)
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return await reader.readexactly(length)
    finally:
        writer.close()
