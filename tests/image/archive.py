"""Reads what the builder wrote, as a container runtime does."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any


class Archive:
    """An OCI layout in a tar, all of it checked: every blob has the size and the digest that it is named by."""

    def __init__(self, path: Path) -> None:
        with tarfile.open(path) as archive:
            self.files = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
        for name, data in self.files.items():
            if name.startswith("blobs/"):
                assert hashlib.sha256(data).hexdigest() == name.removeprefix("blobs/sha256/")
        self.index = self._json("index.json")
        (self.target,) = self.index["manifests"]
        self.manifest = self.document(self.target)
        self.config = self.document(self.manifest["config"])
        self.docker = self._json("manifest.json")

    def document(self, descriptor: dict[str, Any]) -> Any:
        return json.loads(self.blob(descriptor))

    def blob(self, descriptor: dict[str, Any]) -> bytes:
        data = self.files["blobs/" + descriptor["digest"].replace(":", "/")]
        assert len(data) == descriptor["size"]
        return data

    def _json(self, name: str) -> Any:
        return json.loads(self.files[name])


def unpack(path: Path, root: Path) -> None:
    """Lays the layers over each other; none of ours takes files away."""
    for folder in (root, root.parent, root.parent.parent):
        folder.chmod(0o755)  # pytest keeps its folders to itself, and a container's user must get in
    with tarfile.open(path) as archive:
        names = json.load(archive.extractfile("manifest.json"))[0]["Layers"]  # type: ignore[arg-type]
        for name in names:
            with tarfile.open(fileobj=archive.extractfile(name)) as layer:
                layer.extractall(root, filter="fully_trusted")
