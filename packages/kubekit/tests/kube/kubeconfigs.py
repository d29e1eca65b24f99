"""Kubeconfig files and credential plugins for tests of the client."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import yaml


def write(path: Path, server="https://127.0.0.1:6443", user=None, cluster=None, **changes) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "clusters": [{"name": "c", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [
            {"name": "a", "context": {"cluster": "c", "user": "u", "namespace": "ml"}},
            {"name": "b", "context": {"cluster": "c", "user": "u"}},
        ],
    }
    path.write_text(yaml.safe_dump(config | changes))
    return path


def plugin(directory: Path, body: str) -> str:
    """A credential plugin: Python that may use `count`, how often it ran before, and prints."""
    path = directory / "plugin"
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, os, pathlib, sys\n"
        f"seen = pathlib.Path({str(directory / 'seen')!r})\n"
        "count = len(seen.read_text().splitlines()) if seen.exists() else 0\n"
        "seen.open('a').write(os.environ['KUBERNETES_EXEC_INFO'] + '\\n')\n"
        f"{body}\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def answer(version="client.authentication.k8s.io/v1", **status) -> str:
    return (
        f"print({json.dumps({'apiVersion': version, 'kind': 'ExecCredential', 'status': status})!r} % {{'n': count}})"
    )
