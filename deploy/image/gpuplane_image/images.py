"""The images: gpuplane's own, the validation workload's on the same layers, and small ones of a few files.

A layer is composed once for the same inputs and kept in the cache, its tree beside it: the packages, the lock
file, gpuplane's sources, this code and SOURCE_DATE_EPOCH are its key. Two builders may share a cache; the second waits.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from . import compose, containerfile, debian, dependencies, layout, nvidia_toolkit
from .layer import Layer, write_layer

# The image whose program people know; ours takes its name on machines that cannot pull it.
VECTORADD = "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda11.7.1-ubuntu20.04"


class BuiltLayer(NamedTuple):
    """`parts` are bytes by Debian package and Python distribution; `inputs` the SHA-256 of what it was made of, by
    package URL or path in the repository.
    """

    name: str
    digest: str
    size_bytes: int
    parts: compose.Parts
    inputs: dict[str, str]


class ImageInfo(NamedTuple):
    """An archive that was written. `digest` is the manifest's, `size_bytes` the sum of the layers, uncompressed."""

    path: Path
    tag: str
    digest: str
    size_bytes: int
    layers: tuple[BuiltLayer, ...]


class _Composed(NamedTuple):
    tree: Path
    layer: Layer
    parts: compose.Parts
    inputs: dict[str, str]


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuplane" / "image"


def build(output: Path, tag: str, *, cache: Path | None = None) -> ImageInfo:
    """gpuplane's image, as an archive at `output`. Raises ImageError."""
    settings = containerfile.read_settings(
        containerfile.CONTAINERFILE.read_text(), {"VERSION": str(dependencies.project()["version"])}
    )
    with composed_layers(cache or default_cache()) as layers:
        return _write(output, tag, layers, settings)


def vectoradd_image(output: Path, tag: str = VECTORADD, *, cache: Path | None = None) -> ImageInfo:
    """The vectorAdd workload: the layers of gpuplane's image, with that program as the entry point, as root."""
    program = ("/usr/bin/python3.11", "-P", "-m", "gpuplane.validator.vectoradd")
    settings = layout.Settings(program, environment=("PATH=/usr/sbin:/usr/bin", "PYTHONDONTWRITEBYTECODE=1"))
    with composed_layers(cache or default_cache()) as layers:
        return _write(output, tag, layers, settings)


def small_image(
    output: Path,
    tag: str,
    files: Mapping[str, tuple[bytes, int]],
    entrypoint: tuple[str, ...],
    *,
    base_packages: tuple[str, ...] = ("libc6",),
    environment: tuple[str, ...] = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",),
    cache: Path | None = None,
) -> ImageInfo:
    """A few files (path to content and mode) over Debian packages, in one layer; run as root.

    `base_packages` may be empty for a static program. Raises ImageError.
    """
    cache = cache or default_cache()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        inputs = {}
        if base_packages:
            with _locked(cache):
                for package in debian.fetch(base_packages, cache):
                    debian.unpack(package, tree)
                    inputs[package.url] = package.digest
        compose.settle(tree, epoch())
        layer = _files_layer(files, Path(folder), inputs)
        return _write(output, tag, (layer,), layout.Settings(entrypoint, environment=environment))


def _files_layer(files: Mapping[str, tuple[bytes, int]], folder: Path, inputs: dict[str, str]) -> _Composed:
    """A layer of what `folder`/tree has already and of `files`."""
    tree = folder / "tree"
    for path, (data, mode) in files.items():
        target = tree / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(mode)
    return _Composed(tree, write_layer("files", tree, folder / "layer.tar", epoch()), compose.sizes(tree, {}), inputs)


@contextmanager
def composed_layers(cache: Path) -> Iterator[tuple[_Composed, ...]]:
    """Debian with the dependencies, NVIDIA's programs, and gpuplane; from the cache where nothing has changed.

    They are there as long as the context is: the next builder may replace them.
    """
    with _locked(cache):
        requirements = dependencies.runtime_lock(
            (dependencies.REPOSITORY / "requirements.lock").read_text(), dependencies.runtime_roots()
        )
        packages = debian.fetch(tuple(compose.PACKAGES), cache)
        key = _key(
            *(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))),
            *(package.digest.encode() for package in packages),
            requirements.encode(),
            str(epoch()).encode(),
        )
        locked = {"requirements.lock": _sha256(requirements.encode())}
        base = _kept(
            cache,
            "base",
            key,
            {package.url: package.digest for package in packages} | locked,
            lambda tree: compose.compose_base(tree, packages, requirements, cache, epoch()),
        )
        own = _kept(
            cache,
            "gpuplane",
            _key(key.encode(), *dependencies.sources()),
            {"sources": _key(*dependencies.sources(), length=64)},
            lambda tree: compose.compose_gpuplane(tree, base.tree, cache, epoch()),
        )
        yield base, _toolkit(cache), own


def nvidia_programs(cache: Path | None = None) -> Path:
    """The folder with the programs of NVIDIA's that the image brings to hosts. Raises ImageError."""
    cache = cache or default_cache()
    with _locked(cache):
        return _toolkit(cache).tree / nvidia_toolkit.PLACE


def _toolkit(cache: Path) -> _Composed:
    key = _key(*nvidia_toolkit.sources(), os.uname().machine.encode(), str(epoch()).encode())
    inputs = {f"deploy/image/toolkit/{path.name}": _sha256(path.read_bytes()) for path in nvidia_toolkit.PINS.iterdir()}
    return _kept(cache, "toolkit", key, inputs, lambda tree: compose.compose_toolkit(tree, cache, epoch()))


def epoch() -> int:
    """The time of everything, in seconds since 1970: SOURCE_DATE_EPOCH, or 0."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or 0)


def _write(output: Path, tag: str, layers: tuple[_Composed, ...], settings: layout.Settings) -> ImageInfo:
    digest = layout.write_archive(output, tag, [each.layer for each in layers], settings, epoch())
    built = tuple(
        BuiltLayer(each.layer.name, each.layer.digest, each.layer.size_bytes, each.parts, each.inputs)
        for each in layers
    )
    return ImageInfo(output, tag, digest, sum(each.size_bytes for each in built), built)


def _kept(cache: Path, name: str, key: str, inputs: dict[str, str], make: Callable[[Path], compose.Parts]) -> _Composed:
    """The layer of this key out of the cache, made if it is not there; older ones of the name go."""
    place = cache / f"{name}-{key}"
    about = place / "about.json"
    if not about.is_file():
        sys.stderr.write(f"image: composing the layer {name}\n")
        for old in cache.glob(f"{name}-*"):
            shutil.rmtree(old)
        parts = make(place / "tree")
        layer = write_layer(name, place / "tree", place / "layer.tar", epoch())
        about.write_text(json.dumps({"digest": layer.digest, "size_bytes": layer.size_bytes, "parts": parts}))
    known = json.loads(about.read_text())
    return _Composed(
        place / "tree", Layer(name, place / "layer.tar", known["digest"], known["size_bytes"]), known["parts"], inputs
    )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _key(*parts: bytes, length: int = 16) -> str:
    """Return `length` digits of a SHA-256 of the parts' own."""
    state = hashlib.sha256()
    for part in parts:
        state.update(hashlib.sha256(part).digest())
    return state.hexdigest()[:length]


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
