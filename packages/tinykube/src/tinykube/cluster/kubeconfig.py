"""Kubeconfig files of an embedded cluster. The user's own file and current context are never touched."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec

from tinykube.cluster.directory import write


def save(
    path: Path, *, context: str, server: str, ca: bytes, user: str, token: str, namespace: str = "default"
) -> None:
    """Writes a kubeconfig with one cluster, one user and one context, readable by its owner only."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": context,
                "cluster": {"server": server, "certificate-authority-data": base64.b64encode(ca).decode()},
            }
        ],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": user, "namespace": namespace}}],
        "current-context": context,
    }
    # JSON is YAML, and every client reads it.
    write(path, msgspec.json.format(msgspec.json.encode(config)) + b"\n", 0o600)
