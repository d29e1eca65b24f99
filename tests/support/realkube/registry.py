"""A registry of images for a machine's containerd, in a thread of the test: it has the names that manifests write.

Pull only, and uncompressed layers: the parts of the OCI distribution specification (pull) that containerd asks for. It
names the original registry of an image in the parameter `ns`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from deploy.image.gpuplane_image.layer import Layer
from deploy.image.gpuplane_image.layout import full_name

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_PATH: Final = re.compile(r"/v2/(?P<name>.+)/(?P<kind>manifests|blobs)/(?P<reference>[^/]+)")


class Registry:
    """Images by their whole names. `pulled` has the names that were asked for, in order."""

    def __init__(self, address: str) -> None:
        self.pulled: list[str] = []
        self._manifests: dict[str, str] = {}  # whole name -> digest
        self._texts: dict[str, bytes] = {}
        self._files: dict[str, Path] = {}
        host, _, port = address.rpartition(":")
        handler = type("Handler", (_Handler,), {"registry": self})
        self._server = ThreadingHTTPServer((host, int(port)), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def add(self, name: str, layers: Sequence[Layer], entrypoint: Sequence[str], environment: Sequence[str]) -> None:
        """Offer an image of these layers, whose files must stay."""
        config = {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Entrypoint": list(entrypoint), "Env": list(environment), "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
        }
        self._files |= {layer.digest: layer.path for layer in layers}
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": self._keep(_CONFIG, config),
            "layers": [{"mediaType": _LAYER, "digest": each.digest, "size": each.size_bytes} for each in layers],
        }
        self._manifests[full_name(name)] = self._keep(_MANIFEST, manifest)["digest"]

    def digest(self, name: str) -> str:
        """The digest of a name's manifest, or the name itself where it is a digest; empty for none."""
        return name.rpartition("@")[2] if "@" in name else self._manifests.get(name, "")

    def text(self, digest: str) -> bytes | None:
        return self._texts.get(digest)

    def file(self, digest: str) -> Path | None:
        return self._files.get(digest)

    @contextlib.contextmanager
    def serving(self) -> Iterator[Registry]:
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()

    def _keep(self, kind: str, value: dict[str, Any]) -> dict[str, Any]:
        """Store a text; return its descriptor."""
        data = json.dumps(value, sort_keys=True).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self._texts[digest] = data
        return {"mediaType": kind, "digest": digest, "size": len(data)}


class _Handler(BaseHTTPRequestHandler):
    registry: Registry
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *args: object) -> None:
        """A test prints no requests."""

    def _answer(self, *, body: bool) -> None:
        split = urlsplit(self.path)
        found = _PATH.fullmatch(split.path)
        if found is None:
            self._head(HTTPStatus.OK if split.path.rstrip("/") == "/v2" else HTTPStatus.NOT_FOUND, "text/plain", 0)
            return
        digest = found["reference"]
        if found["kind"] == "manifests" and not digest.startswith("sha256:"):
            name = f"{parse_qs(split.query).get('ns', [''])[0]}/{found['name']}:{digest}"
            self.registry.pulled.append(name)
            digest = self.registry.digest(name)
        text, file = self.registry.text(digest), self.registry.file(digest)
        kind = _MANIFEST if found["kind"] == "manifests" else "application/octet-stream"
        if text is not None:
            self._head(HTTPStatus.OK, kind, len(text), digest)
            if body:
                self.wfile.write(text)
        elif file is not None:
            self._head(HTTPStatus.OK, kind, os.path.getsize(file), digest)  # noqa: PTH202 - of a path
            if body:
                with file.open("rb") as data:
                    shutil.copyfileobj(data, self.wfile, 1 << 20)
        else:
            self._head(HTTPStatus.NOT_FOUND, "text/plain", 0)

    def _head(self, status: HTTPStatus, kind: str, size: int, digest: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
