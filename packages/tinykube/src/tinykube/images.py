"""The image catalogue: which program a container of an image runs.

Images are names here and nothing is pulled, so that manifests run verbatim on a machine without a registry or a
runtime. The table is data (`images.toml`). Invariants: an image that the table does not name fails as a pull fails; a
program that is not on this machine fails as a start fails; both with a cure, which is the caller's to word.
"""

from __future__ import annotations

import fnmatch
import hashlib
import shutil
import sys
import sysconfig
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
    """The configuration of an image, with what stands for its files here.

    Args:
        entrypoint: as in an image's configuration.
        command: CMD of an image's configuration.
        programs: programs on the image's path -> the arguments that start them here.
        path: directories of this machine that come first on the search path of its containers.
        mapped: the directory that it was mapped to, whose `bin` is in `path`; empty for none.
        busybox: the program whose applets are the image's /bin; empty for none.
        directories: directories of the image; each container gets them, empty and writable.
        files: files of the image -> paths in `mapped`.
        environment: ENV of an image's configuration.
        own_address: whether servers that would listen on all addresses listen on that of their pod.
        stand_in: whether the entrypoint waits for a signal only, and serves nothing.
    """

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    programs: Mapping[str, tuple[str, ...]] = {}
    path: tuple[str, ...] = ()
    mapped: str = ""
    busybox: str = ""
    directories: tuple[str, ...] = ()
    files: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}
    own_address: bool = False
    stand_in: bool = False

    @property
    def borrows(self) -> bool:
        """Return whether containers run the programs of this machine's Python in place of the image's."""
        return bool(self.path) and not self.mapped

    def file_links(self) -> tuple[tuple[str, str], ...]:
        """Return (path on this machine, file of the image): a link can be moved and removed as the image's file."""
        return tuple((str(Path(self.mapped, source)), target) for target, source in self.files.items())

    def command_line(
        self, command: tuple[str, ...], args: tuple[str, ...], pod_ip: str = "127.0.0.1"
    ) -> tuple[str, ...]:
        """The argument list as the runtimes make it: `command` replaces the entrypoint and drops the image's CMD."""
        own = tuple(word.replace("{pod_ip}", pod_ip) for word in self.command)
        return command + args if command else self.entrypoint + (args or own)


def started(argv: tuple[str, ...], programs: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return `argv` with its program as it is started here; `programs` is that of an ImageConfig."""
    return (*programs.get(argv[0], argv[:1]), *argv[1:]) if argv else argv


class _Configuration(msgspec.Struct):
    """Configuration of an image: a row of `images.toml`, or `image.toml` in the directory that stands for the image."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    programs: dict[str, tuple[str, ...]] = {}
    path: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    files: dict[str, str] = {}
    environment: dict[str, str] = {}
    own_address: bool = False
    stand_in: bool = False
    applets: bool = False


class _Row(_Configuration, kw_only=True):
    names: tuple[str, ...]


class _Table(msgspec.Struct):
    image: tuple[_Row, ...]


class Images:
    """The images that a node can pull.

    Args:
        catalogues: texts in the form of `images.toml`, asked in this order and before tinykube's own.
        cure: how the caller's users map an image to a directory; `{image}` in it stands for the image's name.
    """

    def __init__(self, *catalogues: str, cure: str = "") -> None:
        own = files(__package__).joinpath("images.toml").read_text(encoding="utf-8")
        self._rows = [row for text in (*catalogues, own) for row in msgspec.convert(tomllib.loads(text), _Table).image]
        self._cure = cure
        self._mapped: dict[str, str] = {}
        self._found: dict[str, ImageConfig] = {}

    def map(self, directories: Mapping[str, str]) -> None:
        """Take the programs of images from directories with a `bin`; keys are patterns as in `images.toml`.

        A file `image.toml` in the directory has the image's configuration, in the form of a row without `names`.
        Without the file the configuration is that of the catalogue.
        """
        self._mapped = dict(directories)
        self._found.clear()

    def find(self, name: str) -> ImageConfig:
        """The configuration of an image such as `docker.io/library/busybox:1.36`. Raises ImageMissing."""
        if name not in self._found:
            self._found[name] = self._look_up(name)
        return self._found[name]

    def missing(self, name: str, program: str = "") -> str:
        """Return why a container of this image has no such program, or none of the image's, and what to do."""
        text = f'image "{name}" has no files here, since images are not pulled'
        if program:
            text += f'; this machine has no "{program}" for it'
        return f"{text}: {self._cure.replace('{image}', name)}" if self._cure else text

    def _look_up(self, name: str) -> ImageConfig:
        short = name.removeprefix("docker.io/").removeprefix("library/").removeprefix("localhost/")
        row: _Configuration | None = next((row for row in self._rows if _matches(short, row.names)), None)
        place = next((place for pattern, place in self._mapped.items() if _matches(short, (pattern,))), "")
        if row is None and not place:
            raise ImageMissing(
                f'failed to pull and unpack image "{name}": not found in the catalogue of the simulated nodes',
                where="images.toml",
                cure=self._cure.replace("{image}", name) or "use one of its images, busybox or ubuntu for a shell",
            )
        if place and (file := Path(place) / "image.toml").is_file():
            row = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), _Configuration)
        found = _configured(row) if row is not None else ImageConfig()
        if row is not None and row.applets and (busybox := _busybox(place)):
            found = msgspec.structs.replace(found, busybox=busybox, programs={})
        if not place:
            return found
        if found.stand_in:  # the directory has the program that it stands for
            found = msgspec.structs.replace(found, entrypoint=(), command=(), stand_in=False)
        return msgspec.structs.replace(found, path=(str(Path(place) / "bin"), *found.path), mapped=place)


def _busybox(place: str) -> str:
    """Return the busybox of an image's directory, else that of this machine; empty for none."""
    own = Path(place, "bin/busybox")
    return str(own) if place and own.is_file() else shutil.which("busybox") or ""


def ash() -> tuple[str, ...]:
    """Return the shell that is the nearest to busybox's on a machine without one."""
    return ("bash", "--posix") if shutil.which("bash") else ("sh",)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _configured(row: _Configuration) -> ImageConfig:
    words = {
        "{python}": sys.executable,
        "{pause}": str(NATIVE / "container-shim"),
        "{bin}": sysconfig.get_path("scripts"),
    }

    def replaced(texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(word for text in texts for word in (ash() if text == "{ash}" else (words.get(text, text),)))

    return ImageConfig(
        entrypoint=replaced(row.entrypoint),
        command=replaced(row.command),
        programs={program: replaced(argv) for program, argv in row.programs.items()},
        path=replaced(row.path),
        directories=row.directories,
        files=row.files,
        own_address=row.own_address,
        environment=row.environment,
        stand_in=row.stand_in,
    )


def image_id(name: str) -> str:
    """A digest for status.containerStatuses[].imageID; stable for a name."""
    return f"{name.partition('@')[0].rpartition(':')[0] or name}@sha256:{hashlib.sha256(name.encode()).hexdigest()}"
