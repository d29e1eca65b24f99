"""The archive: an OCI image layout in a tar, with the file that `docker load` reads beside it.

Format: https://github.com/opencontainers/image-spec (image-layout.md, manifest.md, config.md). The names under which
containerd and Docker file the image are annotations of the index and `RepoTags`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from .layer import Layer

_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Settings(NamedTuple):
    """How a container of the image starts."""

    entrypoint: tuple[str, ...]
    user: str = "0:0"
    environment: tuple[str, ...] = ()
    workdir: str = "/"
    labels: dict[str, str] = {}


def full_name(tag: str) -> str:
    """The reference with registry and tag that containerd files an image under: busybox is
    docker.io/library/busybox:latest."""
    first, slash, _ = tag.partition("/")
    if not slash:
        tag = f"docker.io/library/{tag}"
    elif not (any(sign in first for sign in ".:") or first == "localhost"):
        tag = f"docker.io/{tag}"
    return tag if ":" in tag.rpartition("/")[2] else f"{tag}:latest"


def write_archive(output: Path, tag: str, layers: Sequence[Layer], settings: Settings, epoch: int) -> str:
    """Writes the archive, whole or not at all; returns the manifest's digest."""
    config = _bytes(_config(layers, settings, epoch))
    manifest = _bytes(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, config),
            "layers": [{"mediaType": _LAYER, "digest": each.digest, "size": each.size_bytes} for each in layers],
        }
    )
    name = full_name(tag)
    target = _descriptor(_MANIFEST, manifest) | {
        "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]},
        "platform": {"architecture": _architecture(), "os": "linux"},
    }
    docker = [
        {"Config": _place(_digest(config)), "RepoTags": [tag], "Layers": [_place(each.digest) for each in layers]}
    ]
    files = {
        "oci-layout": _bytes({"imageLayoutVersion": "1.0.0"}),
        "index.json": _bytes({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [target]}),
        "manifest.json": _bytes(docker),
        _place(_digest(manifest)): manifest,
        _place(_digest(config)): config,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    fresh = output.with_name(f".{output.name}.{os.getpid()}.new")
    try:
        with tarfile.open(fresh, "w", format=tarfile.PAX_FORMAT) as archive:
            for path, data in files.items():
                archive.addfile(_entry(path, len(data), epoch), io.BytesIO(data))
            for each in layers:
                with each.path.open("rb") as file:
                    archive.addfile(_entry(_place(each.digest), each.size_bytes, epoch), file)
        fresh.replace(output)
    finally:
        fresh.unlink(missing_ok=True)
    return _digest(manifest)


def _config(layers: Sequence[Layer], settings: Settings, epoch: int) -> dict[str, Any]:
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "created": created,
        "architecture": _architecture(),
        "os": "linux",
        "config": {
            "User": settings.user,
            "Env": list(settings.environment),
            "Entrypoint": list(settings.entrypoint),
            "WorkingDir": settings.workdir,
            "Labels": settings.labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
        "history": [{"created": created, "created_by": f"deploy/image: {layer.name}"} for layer in layers],
    }


def _architecture() -> str:
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def _descriptor(kind: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": _digest(data), "size": len(data)}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _place(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _bytes(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _entry(name: str, size: int, epoch: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, epoch, 0o644
    return entry
