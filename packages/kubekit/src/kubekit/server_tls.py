"""TLS contexts that are exchanged while a server or a client uses them, from bytes instead of files.

A server shows another certificate, and trusts other callers, from the next handshake on; nothing is restarted. Callers
may show a certificate: one of another authority ends the handshake, and without one the server decides by the path what
a caller may ask (`kubekit.http_server.serving`).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable


class ServerTls:
    """The TLS context of a server. `refresh` is called before each handshake, and may `take` something new."""

    def __init__(self, refresh: Callable[[], None] | None = None) -> None:
        self._refresh = refresh
        self._current = self.context = _server_context()
        # NB: called at every handshake, also when the client names no server.
        self.context.sni_callback = self._choose

    def take(self, certificate: bytes, key: bytes, callers: bytes = b"") -> None:
        """Use these from the next handshake on, in PEM. `callers` are the authorities of callers' certificates; without
        them no caller is asked for one. Raises ssl.SSLError for ones that cannot be used.
        """
        fresh = _server_context()
        load_chain(fresh, certificate, key)
        if callers:
            fresh.load_verify_locations(cadata=_pem(callers))
        self._current = fresh
        # NB: whether a caller is asked is decided by the context that the server listens with.
        self.context.verify_mode = ssl.CERT_OPTIONAL if callers else ssl.CERT_NONE

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, of: ssl.SSLContext) -> None:
        if self._refresh is not None:
            self._refresh()
        connection.context = self._current


def client_context(authorities: bytes, certificate: bytes = b"", key: bytes = b"") -> ssl.SSLContext:
    """Return the context of a client that trusts these authorities and shows this certificate. Raises ssl.SSLError."""
    context = ssl.create_default_context(cadata=_pem(authorities))
    if certificate:
        load_chain(context, certificate, key)
    return context


def load_chain(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a certificate with its key from bytes. Raises ssl.SSLError."""
    # NB: Python's ssl reads files only; the key touches no disk.
    file = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        os.write(file, certificate + key)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)


def _pem(authorities: bytes) -> str:
    """Return authorities as text. Raises ssl.SSLError where they are invalid: Python's ssl raises TypeError."""
    try:
        return authorities.decode("ascii")
    except UnicodeDecodeError as error:
        raise ssl.SSLError(f"the authorities are not in PEM: {error}") from error


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
