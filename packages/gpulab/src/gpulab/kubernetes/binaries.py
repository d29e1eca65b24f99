"""The programs of a real cluster, built once from the published Go modules that `modules/` pins, and kept in a cache.

A set's directory in the cache is named by the digest of its go.mod and go.sum, so a new version is built again and
two checkouts share what is the same. It appears whole or not at all.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from gpulab.kubernetes.go import find_go
from gpulab.kubernetes.unavailable import Unavailable

MODULES: Final = Path(__file__).parent / "modules"
PROXY_HINT: Final = "see `go env GOPROXY`; an earlier build that is in the cache needs no network"
FULL: Final = "free some space; XDG_CACHE_HOME and GOCACHE name other directories"
_TOLD_S: Final = 30.0


class Set(msgspec.Struct, frozen=True):
    """Programs that are built together: package path -> name, and what the linker writes into them.

    A name that ends with `.test` is the program of a package's tests.
    """

    module: str
    programs: dict[str, str]
    version_of: str
    variables: tuple[str, ...] = ()


_KUBERNETES: Final = "k8s.io/component-base/version"
_KUBERNETES_VARIABLES: Final = (
    f"{_KUBERNETES}.gitVersion={{version}}",
    f"{_KUBERNETES}.gitMajor={{major}}",
    f"{_KUBERNETES}.gitMinor={{minor}}",
    f"{_KUBERNETES}.gitTreeState=clean",
)
SETS: Final = {
    "etcd": Set("etcd", {"go.etcd.io/etcd/server/v3": "etcd"}, "go.etcd.io/etcd/server/v3"),
    "kubernetes": Set(
        "kubernetes",
        {
            f"k8s.io/kubernetes/cmd/{name}": name
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
        },
        "k8s.io/kubernetes",
        _KUBERNETES_VARIABLES,
    ),
    # A module of its own: it imports what the others do not.
    "kube-proxy": Set(
        "kube-proxy", {"k8s.io/kubernetes/cmd/kube-proxy": "kube-proxy"}, "k8s.io/kubernetes", _KUBERNETES_VARIABLES
    ),
    # Kubernetes' own end-to-end tests, the program that runs them in parallel, and the images that their pods name.
    "e2e": Set(
        "e2e",
        {
            "k8s.io/kubernetes/test/e2e": "e2e.test",
            "github.com/onsi/ginkgo/v2/ginkgo": "ginkgo",
            "k8s.io/kubernetes/test/images/agnhost": "agnhost",
            "k8s.io/kubernetes/test/images/nonewprivs": "nnp",
        },
        "k8s.io/kubernetes",
        _KUBERNETES_VARIABLES,
    ),
    "containerd": Set(
        "containerd",
        {
            f"github.com/containerd/containerd/v2/cmd/{name}": name
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        },
        "github.com/containerd/containerd/v2",
        ("github.com/containerd/containerd/v2/version.Version={version}",),
    ),
    "helm": Set(
        "helm",
        {"helm.sh/helm/v4/cmd/helm": "helm"},
        "helm.sh/helm/v4",
        ("helm.sh/helm/v4/internal/version.version={version}",),
    ),
}


def cache() -> Path:
    """Return the directory of built programs."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gpuplane" / "kubernetes"


def version(name: str) -> str:
    """The version of a set, such as `v1.36.3`, from its go.mod."""
    wanted = SETS[name].version_of
    for line in (MODULES / SETS[name].module / "go.mod").read_text().splitlines():
        words = line.removeprefix("require").split()
        if len(words) >= 2 and words[0] == wanted:
            return words[1]
    raise AssertionError(f"{wanted} is not in the go.mod of {name}")


def directory(name: str) -> Path:
    """Return the directory of a set's programs, built or not."""
    module = MODULES / SETS[name].module
    digest = hashlib.sha256()
    for file in ("go.mod", "go.sum"):
        digest.update((module / file).read_bytes())
    digest.update(repr(SETS[name]).encode())
    return cache() / f"{name}-{version(name)}-{digest.hexdigest()[:12]}"


def built(name: str) -> bool:
    return all((directory(name) / program).is_file() for program in SETS[name].programs.values())


def missing(name: str) -> tuple[str, ...]:
    """Return the programs of a set that an interrupted build, or none, has left to build."""
    if built(name):
        return ()
    begun = _begun(directory(name))
    return tuple(program for program in SETS[name].programs.values() if not (begun / program).exists())


def build_all(names: Sequence[str], progress: Callable[[str], None] = lambda _: None) -> None:
    """Build sets, see `build`; the lines of progress number the programs of all of them."""
    steps = _Steps(sum(len(missing(name)) for name in names))
    for name in names:
        _build(name, progress, steps)


def build(name: str, progress: Callable[[str], None] = lambda _: None) -> Path:
    """Return the directory with a set's programs; they are built when they are missing, which takes minutes.

    `progress` gets a line for each program, and one every half minute. A build that was interrupted goes on with the
    next program, and Go has in its own cache what it compiled of that one.

    Raises Unavailable: no Go, no module proxy, or the compiler's error.
    """
    return _build(name, progress, _Steps(len(missing(name))))


class _Steps:
    """The number of the program that is being built, of all that are built: `2 of 5`."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._number = 0

    def next(self) -> str:
        # Another command may have built some meanwhile, or thrown the begun ones away.
        self._number += 1
        return f"{self._number} of {max(self._count, self._number)}"


def _begun(place: Path) -> Path:
    """Return the directory of a set that is not whole yet."""
    return place.with_name(f".{place.name}.new")


def _build(name: str, progress: Callable[[str], None], steps: _Steps) -> Path:
    if built(name):
        return directory(name)
    place = directory(name)
    place.parent.mkdir(parents=True, exist_ok=True)
    with _alone(place):
        if built(name):
            return place
        go = find_go(cache().with_name("go"), progress)
        new = _begun(place)
        new.mkdir(exist_ok=True)
        for path, program in SETS[name].programs.items():
            if not (new / program).exists():
                _compile(go, name, path, new / program, progress, steps.next())
        shutil.rmtree(place, ignore_errors=True)
        new.rename(place)
    return place


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """One builder at a time; the lock falls with its holder."""
    with (place.parent / f".{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(go: str, name: str, path: str, output: Path, progress: Callable[[str], None], step: str) -> None:
    """Write a program whole or not at all; `step` is its number, such as `2 of 5`. Raises Unavailable."""
    module, number, partly = MODULES / SETS[name].module, version(name), output.with_name(f".{output.name}")
    program = f"{output.name} {number}"
    progress(f"building {program} ({step})")
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        command = [go, *_verb(output.name), *_flags(name), "-o", str(partly), path]
        with subprocess.Popen(
            command, cwd=module, env=_environment(), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
        ) as compiler:
            while (code := _ended(compiler)) is None:
                progress(f"building {program} ({step}): {time.monotonic() - began:.0f} s so far")
        errors.seek(0)
        said = errors.read()
    if code:
        lines = [line.strip() for line in said.splitlines() if line.strip()] or [f"exit status {code}"]
        network = any(word in said for word in ("dial tcp", "no such host", "proxyconnect", "i/o timeout"))
        full = "no space left on device" in said
        tried = " ".join(("go", *_verb(output.name), path))
        raise Unavailable(
            f"{name} {number} cannot be built: {lines[-1]}",
            where=tried,
            cure=FULL if full else PROXY_HINT if network else f"see the output of `{tried}` in {module}",
        )
    partly.rename(output)
    progress(f"built {program} in {time.monotonic() - began:.0f} s")


def _ended(compiler: subprocess.Popen[bytes]) -> int | None:
    """Return the compiler's exit status; None when it works for half a minute more."""
    try:
        return compiler.wait(_TOLD_S)
    except subprocess.TimeoutExpired:
        return None


def _verb(program: str) -> tuple[str, ...]:
    """Return Go's command that makes a program."""
    return ("test", "-c", "-vet=off") if program.endswith(".test") else ("build",)


def _flags(name: str) -> tuple[str, ...]:
    number = version(name)
    major, minor, *_ = number.removeprefix("v").split(".")
    variables = ["-X " + text.format(version=number, major=major, minor=minor) for text in SETS[name].variables]
    return ("-trimpath", "-buildvcs=false", "-ldflags", " ".join(("-s -w", *variables)))


def _environment() -> dict[str, str]:
    """Return the environment of a build: go.sum has the checksums of all modules, and Go compares them."""
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "auto"}
