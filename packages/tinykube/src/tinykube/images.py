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
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import msgspec

from kubekit.errors import Terminal
from tinykube import device_files

NATIVE = Path(str(files("tinykube"))) / "_native"


class ImageMissing(Terminal):
    """The catalogue has no program for this image; the pod waits with ErrImagePull."""


class Image(msgspec.Struct, frozen=True):
    """The configuration of an image: `entrypoint` and `command` (CMD) as argument lists."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


class _Row(msgspec.Struct):
    names: tuple[str, ...]
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


class _Table(msgspec.Struct):
    image: tuple[_Row, ...]


@lru_cache(maxsize=1)
def _table() -> tuple[_Row, ...]:
    text = files(__package__).joinpath("images.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _Table).image


@lru_cache(maxsize=1024)
def find_image(name: str) -> Image:
    """The program of an image reference such as `docker.io/library/busybox:1.36`. Raises ImageMissing."""
    short = name.removeprefix("docker.io/").removeprefix("library/").removeprefix("localhost/")
    words = {"{python}": sys.executable, "{pause}": str(NATIVE / "container-shim")}
    for row in _table():
        if any(fnmatch.fnmatchcase(short, pattern) for pattern in row.names):
            return Image(
                tuple(words.get(word, word) for word in row.entrypoint),
                tuple(words.get(word, word) for word in row.command),
            )
    raise ImageMissing(
        f'failed to pull and unpack image "{name}": not found in the catalogue of the simulated nodes',
        where="tinykube/images.toml",
        cure="use one of its images, busybox or ubuntu for a shell",
    )


def image_id(name: str) -> str:
    """A digest for status.containerStatuses[].imageID; stable for a name."""
    return f"{name.partition('@')[0].rpartition(':')[0] or name}@sha256:{hashlib.sha256(name.encode()).hexdigest()}"


def command_line(image: Image, command: tuple[str, ...], args: tuple[str, ...]) -> tuple[str, ...]:
    """The argument list as the runtimes make it: `command` replaces the entrypoint and drops the image's CMD."""
    if command:
        words = command + args
    else:
        words = image.entrypoint + (args or image.command)
    if words and words[0] == "gpuplane":
        # The image has it on its path; here it is this very installation.
        words = (sys.executable, "-m", "gpuplane", *words[1:])
    if words[1:3] == ("-m", "gpuplane") and not device_files.may_make_nodes():
        words = (words[0], "-m", device_files.__name__, *words[2:])
    return words
