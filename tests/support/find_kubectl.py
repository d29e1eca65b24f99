"""Finds a kubectl for the tests: the one on PATH, else Debian's package, else one built from its Go module.

A fetched kubectl is stored outside the tree (`$XDG_CACHE_HOME/gpuplane`), so that it is fetched once. As a script it
prints the path, or the reason why there is no kubectl and exits with 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

GO_MODULE = "v0.33.0"
_VERSION = "k8s.io/component-base/version"
_LINK = f"-s -w -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor=33 -X {_VERSION}.gitVersion=v1.33.0"
_GO_MAIN = """package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
)

func main() { os.Exit(cli.Run(cmd.NewDefaultKubectlCommand())) }
"""


class NoKubectl(Exception):
    """None is installed and none could be fetched; the message has every reason."""


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuplane"


def find() -> Path:
    """Raises NoKubectl."""
    if installed := shutil.which("kubectl"):
        return Path(installed)
    kept = cache() / "kubectl"
    if kept.exists():
        return kept
    reasons = []
    for fetch in (_from_debian, _from_go):
        with tempfile.TemporaryDirectory() as scratch:
            try:
                made = fetch(Path(scratch))
            except (OSError, subprocess.SubprocessError) as problem:
                reasons.append(f"{fetch.__name__.removeprefix('_from_')}: {problem}")
                continue
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(made, kept.with_suffix(".part"))
            kept.with_suffix(".part").rename(kept)
            return kept
    raise NoKubectl("no kubectl on PATH, and none could be fetched (" + "; ".join(reasons) + ")")


def _run(directory: Path, *command: str) -> None:
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=1800)


def _from_debian(scratch: Path) -> Path:
    _run(scratch, "apt-get", "download", "kubernetes-client")
    (package,) = scratch.glob("kubernetes-client_*.deb")
    _run(scratch, "dpkg", "-x", str(package), "root")
    return scratch / "root" / "usr" / "bin" / "kubectl"


def _from_go(scratch: Path) -> Path:
    (scratch / "main.go").write_text(_GO_MAIN)
    _run(scratch, "go", "mod", "init", "gpuplane.dev/kubectl")
    _run(scratch, "go", "get", f"k8s.io/kubectl@{GO_MODULE}", f"k8s.io/component-base@{GO_MODULE}")
    _run(scratch, "go", "mod", "tidy")
    _run(scratch, "go", "build", "-trimpath", "-ldflags", _LINK, "-o", "kubectl", ".")
    return scratch / "kubectl"


if __name__ == "__main__":
    try:
        print(find())
    except NoKubectl as problem:
        sys.exit(str(problem))
