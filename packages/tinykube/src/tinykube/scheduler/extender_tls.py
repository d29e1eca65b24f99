"""The TLS context by which the scheduler calls an extender, with files that may change at any time.

As kube-scheduler has it: `enableHTTPS` without an authority verifies no certificate (pkg/scheduler/extender.go), and a
certificate in files is read again when it changes.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from kubekit.documents import LONGEST_SETTINGS, FileError, read_file
from kubekit.server_tls import load_chain
from tinykube.scheduler.config import ExtenderConfig, TLSConfig

ReadFile = Callable[[str], bytes]  # by its path; raises OSError
_LONGEST: int = LONGEST_SETTINGS


def read_disk(path: str) -> bytes:
    """Return a file of this machine. Raises OSError."""
    try:
        return read_file(Path(path), limit=_LONGEST)
    except FileError as error:
        raise OSError(str(error)) from error


class ExtenderTls:
    """The context of one extender, made again when a file changes."""

    def __init__(self, config: ExtenderConfig, https: bool, read: ReadFile) -> None:
        self.is_used = https or config.enable_https
        self._config = config.tls_config or TLSConfig()
        self._verifies_by_default = not config.enable_https
        self._read = read
        self._made: tuple[tuple[bytes, bytes, bytes], ssl.SSLContext] | None = None

    @property
    def server_name(self) -> str:
        """Return the name in the extender's certificate; empty for the host of its URL."""
        return self._config.server_name

    def context(self) -> ssl.SSLContext | None:
        """Return the context; None for HTTP. Raises OSError for files that cannot be read or used."""
        if not self.is_used:
            return None
        tls = self._config
        parts = (
            self._part(tls.ca_data, tls.ca_file),
            self._part(tls.cert_data, tls.cert_file),
            self._part(tls.key_data, tls.key_file),
        )
        if self._made is None or self._made[0] != parts:
            self._made = (parts, self._make(*parts))
        return self._made[1]

    def _part(self, data: bytes, file: str) -> bytes:
        return data or (self._read(file) if file else b"")

    def _make(self, authorities: bytes, certificate: bytes, key: bytes) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=authorities.decode("ascii", "replace") or None)
        if self._config.insecure or not (authorities or self._verifies_by_default):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate:
            load_chain(context, certificate, key)
        return context
