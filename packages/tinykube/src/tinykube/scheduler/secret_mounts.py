"""Secrets as directories of the scheduler, which has no pod with volumes and reads them from the registry.

A file of such a directory is the Secret's of this moment. Other paths are files of this machine.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import PurePosixPath

from tinykube.apiserver import Registry
from tinykube.scheduler.extender_tls import read_disk


class SecretMounts:
    """`mounts`: directory -> (namespace, name) of the Secret."""

    def __init__(self, registry: Registry, mounts: Mapping[str, tuple[str, str]]) -> None:
        self._registry = registry
        self._mounts = mounts

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises OSError."""
        file = PurePosixPath(path)
        place = self._mounts.get(str(file.parent))
        if place is None:
            return read_disk(path)
        namespace, name = place
        secret = self._registry.get("secrets", namespace, name) or {}
        encoded = (secret.get("data") or {}).get(file.name)
        if encoded is None:
            raise OSError(f"open {path}: Secret {namespace}/{name} has no {file.name} yet")
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error as error:
            raise OSError(f"open {path}: {error}") from error
