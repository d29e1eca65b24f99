"""The image catalogue: which program a container of an image runs.

Images are names here and nothing is pulled, so that manifests run verbatim on a machine without a registry or a
runtime. The table is data (`images.toml`). Invariant: an image that the table does not name fails as a pull fails,
with a cure.
"""

from __future__ import annotations

import fnmatch
import hashlib
import sys
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import msgspec

from kubekit.errors import Terminal

NATIVE = Path(str(files("tinykube"))) / "_native"


class ImageMissing(Terminal):
    """The catalogue has no program for this image; the pod waits with ErrImagePull."""


class ImageConfig(msgspec.Struct, frozen=True):
    """The configuration of an image: `entrypoint` and `command` (CMD) as argument lists.

    `programs` maps programs that the image has on its path to the arguments that start them here.
    """

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    programs: Mapping[str, tuple[str, ...]] = {}

    def command_line(self, command: tuple[str, ...], args: tuple[str, ...]) -> tuple[str, ...]:
        """The argument list as the runtimes make it: `command` replaces the entrypoint and drops the image's CMD."""
        return command + args if command else self.entrypoint + (args or self.command)


def started(argv: tuple[str, ...], programs: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return `argv` with its program as it is started here; `programs` is that of an ImageConfig."""
    return (*programs.get(argv[0], argv[:1]), *argv[1:]) if argv else argv


class _Row(msgspec.Struct):
    names: tuple[str, ...]
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    programs: dict[str, tuple[str, ...]] = {}


class _Table(msgspec.Struct):
    image: tuple[_Row, ...]


class Images:
    """The images that a node can pull.

    Args:
        catalogues: texts in the form of `images.toml`, asked in this order and before tinykube's own.
    """

    def __init__(self, *catalogues: str) -> None:
        own = files(__package__).joinpath("images.toml").read_text(encoding="utf-8")
        self._rows = [row for text in (*catalogues, own) for row in msgspec.convert(tomllib.loads(text), _Table).image]
        self._found: dict[str, ImageConfig] = {}

    def find(self, name: str) -> ImageConfig:
        """The program of an image reference such as `docker.io/library/busybox:1.36`. Raises ImageMissing."""
        if name not in self._found:
            self._found[name] = self._look_up(name)
        return self._found[name]

    def _look_up(self, name: str) -> ImageConfig:
        short = name.removeprefix("docker.io/").removeprefix("library/").removeprefix("localhost/")
        words = {"{python}": sys.executable, "{pause}": str(NATIVE / "container-shim")}
        for row in self._rows:
            if any(fnmatch.fnmatchcase(short, pattern) for pattern in row.names):
                lists = (row.entrypoint, row.command, *row.programs.values())
                entrypoint, command, *programs = (tuple(words.get(word, word) for word in words_) for words_ in lists)
                return ImageConfig(entrypoint, command, dict(zip(row.programs, programs, strict=True)))
        raise ImageMissing(
            f'failed to pull and unpack image "{name}": not found in the catalogue of the simulated nodes',
            where="images.toml",
            cure="use one of its images, busybox or ubuntu for a shell",
        )


def image_id(name: str) -> str:
    """A digest for status.containerStatuses[].imageID; stable for a name."""
    return f"{name.partition('@')[0].rpartition(':')[0] or name}@sha256:{hashlib.sha256(name.encode()).hexdigest()}"
