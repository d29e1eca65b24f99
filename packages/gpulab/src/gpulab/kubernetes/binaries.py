"""The programs of a real cluster, built once from the published Go modules that `modules/` pins, and kept in a cache.

A set's directory in the cache is named by the digest of its go.mod and go.sum, so a new version is built again and
two checkouts share what is the same. It appears whole or not at all: a build that was killed leaves nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from kubekit.errors import Terminal

MODULES: Final = Path(__file__).parent / "modules"
PROXY_HINT: Final = "see `go env GOPROXY`; an earlier build that is in the cache needs no network"


class Unavailable(Terminal):
    """Something that a real cluster needs is not on this machine; the tests that need it are skipped, saying this."""


class Set(msgspec.Struct, frozen=True):
    """Programs that are built together: package path -> name, and what the linker writes into them."""

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


def build(name: str, progress: Callable[[str], None] = lambda _: None) -> Path:
    """The directory with a set's programs; built when they are not there, which takes minutes.

    Raises Unavailable: no Go, no module proxy, or the compiler's error.
    """
    if built(name):
        return directory(name)
    go = shutil.which("go")
    if go is None:
        raise Unavailable(
            "there is no Go to build Kubernetes with", where="PATH", cure="install Go 1.26 or newer (go.dev/dl)"
        )
    place = directory(name)
    place.parent.mkdir(parents=True, exist_ok=True)
    with _alone(place):
        if built(name):
            return place
        progress(f"building {name} {version(name)}: once, it takes minutes")
        began = time.monotonic()
        new = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=place.parent))
        try:
            _compile(go, name, new)
            shutil.rmtree(place, ignore_errors=True)
            new.rename(place)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        progress(f"built {name} {version(name)} in {time.monotonic() - began:.0f} s")
    return place


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """One builder at a time; the lock falls with its holder."""
    with (place.parent / f".{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(go: str, name: str, output: Path) -> None:
    chosen = SETS[name]
    number = version(name)
    major, minor, *_ = number.removeprefix("v").split(".")
    variables = ["-X " + text.format(version=number, major=major, minor=minor) for text in chosen.variables]
    common = ("-trimpath", "-buildvcs=false", "-ldflags", " ".join(("-s -w", *variables)))
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "auto"}
    for path, program in chosen.programs.items():
        done = subprocess.run(
            [go, "build", *common, "-o", str(output / program), path],
            cwd=MODULES / chosen.module,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit status {done.returncode}"]
            network = any(word in done.stderr for word in ("dial tcp", "no such host", "proxyconnect", "i/o timeout"))
            raise Unavailable(
                f"{name} {number} cannot be built: {lines[-1].strip()}",
                where=f"go build {path}",
                cure=PROXY_HINT if network else f"see the output of `go build` in {MODULES / chosen.module}",
            )
