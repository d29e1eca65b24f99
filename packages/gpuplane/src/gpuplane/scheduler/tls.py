"""HTTPS with files that may be replaced at any time: each handshake uses the files of that moment.

A renewal (by cert-manager through a Secret, or by a person) replaces files; nothing is restarted and nothing polls.
Files that do not match, as between two writes, are not used: the last valid ones stay in use.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import msgspec

from kubekit.errors import InvalidInput

log = logging.getLogger("gpuplane.scheduler")


class Files(msgspec.Struct, frozen=True):
    """`certificate` with its chain and `key` in PEM; `clients`: the authority that callers' certificates are from."""

    certificate: Path
    key: Path
    clients: Path | None = None

    def marks(self) -> tuple[tuple[int, int, int], ...]:
        """Return marks that change when a file does, also by a renamed link. Raises OSError."""
        found = [path.stat() for path in (self.certificate, self.key, self.clients) if path is not None]
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in found)


def serving_context(files: Files) -> ssl.SSLContext:
    """Return a server's TLS context. Raises InvalidInput for files that cannot be used now."""
    try:
        context, marks = _load(files), files.marks()
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(
            f"no TLS certificate: {error}",
            where=f"{files.certificate}, {files.key}",
            cure="give a certificate and its key in PEM with --tls-cert-file and --tls-private-key-file",
        ) from error
    current = context

    def choose(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, of: ssl.SSLContext) -> None:
        nonlocal current, marks
        try:
            now = files.marks()
            if now != marks:
                current, marks = _load(files), now
                log.info("certificate read file=%s", files.certificate)
        except (OSError, ssl.SSLError) as error:
            log.warning("certificate invalid, the old one stays file=%s: %s", files.certificate, error)
        connection.context = current

    # NB: called at every handshake, also when the client names no server.
    context.sni_callback = choose
    return context


def forwarding_context(files: Files) -> ssl.SSLContext:
    """Return the TLS context for calls to another replica: both have the same certificate, which is trusted."""
    context = ssl.create_default_context(cafile=str(files.certificate))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = False
    if files.clients is not None:
        context.load_cert_chain(files.certificate, files.key)
    return context


def _load(files: Files) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.certificate, files.key)
    if files.clients is not None:
        context.load_verify_locations(files.clients)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
