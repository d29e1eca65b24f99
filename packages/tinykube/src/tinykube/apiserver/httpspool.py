"""HTTPS connections to webhooks, kept open between calls: a TLS handshake costs more than the call.

Used from threads. A connection that the other side has closed meanwhile is replaced, once.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from functools import lru_cache
from typing import Final, NamedTuple

_KEPT: Final = 8  # of one server


class ServerAddress(NamedTuple):
    """The called server: its name, its address, the PEM of its authorities (empty: the system's)."""

    name: str
    address: tuple[str, int]
    authorities: str


class Reply(NamedTuple):
    status: int
    reason: str
    data: bytes


class HttpsPool:
    """Raises OSError, http.client.HTTPException or ValueError when a server cannot be asked."""

    def __init__(self) -> None:
        self._idle: dict[ServerAddress, list[http.client.HTTPConnection]] = {}
        self._lock = threading.Lock()

    def post(self, server: ServerAddress, target: str, body: bytes, timeout: float) -> Reply:
        """One JSON request; `timeout` (seconds) holds for connecting and for each read."""
        with self._lock:
            kept = self._idle.get(server)
            connection = kept.pop() if kept else None
        if connection is not None:
            try:
                return self._ask(server, connection, target, body, timeout)
            except (ConnectionError, ssl.SSLError, http.client.BadStatusLine):
                pass  # it was closed while it lay idle
        return self._ask(server, _connect(server, timeout), target, body, timeout)

    def _ask(
        self, server: ServerAddress, connection: http.client.HTTPConnection, target: str, body: bytes, timeout: float
    ) -> Reply:
        try:
            connection.sock.settimeout(timeout)
            connection.request("POST", target, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            reply = Reply(response.status, response.reason, response.read())
        except BaseException:
            connection.close()
            raise
        with self._lock:
            kept = self._idle.setdefault(server, [])
            keep = not response.will_close and len(kept) < _KEPT
            if keep:
                kept.append(connection)
        if not keep:
            connection.close()
        return reply

    def close(self) -> None:
        with self._lock:
            kept = [connection for connections in self._idle.values() for connection in connections]
            self._idle.clear()
        for connection in kept:
            connection.close()


@lru_cache(maxsize=64)
def _context(authorities: str) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authorities or None)


def _connect(server: ServerAddress, timeout: float) -> http.client.HTTPConnection:
    plain = socket.create_connection(server.address, timeout=timeout)
    try:
        secured = _context(server.authorities).wrap_socket(plain, server_hostname=server.name)
    except BaseException:
        plain.close()
        raise
    connection = http.client.HTTPConnection(server.name, server.address[1], timeout=timeout)
    connection.auto_open = 0  # a lost connection is an error here, never a plain new one
    connection.sock = secured
    return connection
