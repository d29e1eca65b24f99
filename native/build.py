"""Compiles the C parts: in place with `python native/build.py`, and as the build hook of the wheel.

zig's C compiler (a Python package) is used because what it links against glibc 2.17 loads in any container that GPU
users still have; $CC replaces it where zig cannot run. Each target is a row of TARGETS. A target is compiled again only
when its sources, its flags or the compiler changed: their digest is kept in .cache/native.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # `python native/build.py` needs no hatchling
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "src" / "gpuplane" / "_native"
STAMPS = ROOT / ".cache" / "native"
COMMON_FLAGS = ("-std=c11", "-O2", "-g0", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-fno-sanitize=all")
GLIBC = "2.17"


class Target(NamedTuple):  # no dataclass: hatchling executes this file without making it a module
    """One output file. `sources` are patterns relative to native/; `libc` is "gnu" or "musl" (then static); `needed` is
    a library that the output needs by this name, and that is not there when it is linked."""

    output: str
    sources: tuple[str, ...]
    flags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    libc: str = "gnu"
    needed: str = ""

    def files(self) -> list[Path]:
        return sorted(path for pattern in self.sources for path in (ROOT / "native").glob(pattern))

    def inputs(self) -> list[Path]:
        """Everything whose change asks for a new build: the sources, and all headers beside them."""
        folders = {path.parent for path in self.files()}
        folders |= {folder.parent for folder in folders if folder.parent != ROOT / "native"}
        headers = [path for folder in folders for pattern in ("*.h", "*.def") for path in folder.glob(pattern)]
        return sorted([*self.files(), *headers])


_SHARED = ("-shared", "-s", "-fPIC", "-fvisibility=hidden", "-Wl,--no-undefined")
# A driver's library calls its own functions, also where the limiter stands before it.
_DRIVER = (*_SHARED, "-Wl,-Bsymbolic")
# A few words of each thread, read by every launch: no call to find them.
_LIMITER = (*_DRIVER, "-ftls-model=initial-exec", "-Wl,-rpath,$ORIGIN", "-Wl,--enable-new-dtags")
TARGETS = (
    Target(
        "libcuda.so.1",
        ("simgpu/*.c", "simgpu/ptx/*.c", "simgpu/cuda/*.c"),
        (*_DRIVER, "-Wl,-soname,libcuda.so.1"),
        ("-lpthread", "-lm"),
    ),
    Target(
        "libnvidia-ml.so.1",
        ("simgpu/*.c", "simgpu/nvml/*.c"),
        (*_DRIVER, "-Wl,-soname,libnvidia-ml.so.1"),
        ("-lpthread", "-lm"),
    ),
    # The limiter has the names of the real libraries, so it lies in a folder of its own.
    Target(
        "limiter/libcuda.so.1",
        ("limiter/*.c", "limiter/cuda/*.c"),
        (*_LIMITER, "-Wl,-soname,libcuda.so.1"),
        ("-lpthread", "-ldl"),
        needed="libcuda.so.gpuplane-real",
    ),
    Target(
        "limiter/libnvidia-ml.so.1",
        ("limiter/*.c", "limiter/nvml/*.c"),
        (*_LIMITER, "-Wl,-soname,libnvidia-ml.so.1"),
        ("-lpthread", "-ldl"),
        needed="libnvidia-ml.so.gpuplane-real",
    ),
    # Its names without a version, which some programs ask for.
    *(
        Target(f"limiter/{name}", ("limiter/plain/*.c",), (*_LIMITER, f"-Wl,-soname,{name}"), needed=f"{name}.1")
        for name in ("libcuda.so", "libnvidia-ml.so")
    ),
    Target("nvidia-cuda-mps-control", ("simgpu/mps/*.c",), ("-static", "-s"), libc="musl"),
    Target("simhost", ("simhost/tools/*.c",), ("-static", "-s"), libc="musl"),
    Target("container-shim", ("simhost/shim/*.c",), ("-static", "-s"), libc="musl"),
    Target("cdi-hook", ("cdihook/*.c",), ("-static", "-s"), libc="musl"),
)


def compiler(arch: str, libc: str) -> list[str]:
    """The command that compiles for `arch`: zig, or $CC, which then has to be a compiler for that machine."""
    own = os.environ.get("CC")
    if own:
        return shlex.split(own)
    triple = f"{arch}-linux-gnu.{GLIBC}" if libc == "gnu" else f"{arch}-linux-musl"
    return [sys.executable, "-m", "ziglang", "cc", "-target", triple]


def build(arch: str, output: Path, names: tuple[str, ...] = (), *, force: bool = False) -> list[Path]:
    """Builds the targets that are out of date; returns the paths of all of them.

    Raises:
        SystemExit: the compiler failed; its output was printed.
    """
    # zig has a file open for every object of a libc that it compiles: the 1,024 of a usual shell are too few.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    output.mkdir(parents=True, exist_ok=True)
    built = []
    for target in TARGETS:
        if names and target.output not in names:
            continue
        if not target.files():
            raise SystemExit(f"native/build.py: {target.output} has no sources in {', '.join(target.sources)}")
        path = output / target.output
        _build_one(target, arch, path, force)
        built.append(path)
    return built


def _build_one(target: Target, arch: str, path: Path, force: bool) -> None:
    command = [*compiler(arch, target.libc), *COMMON_FLAGS, *target.flags]
    digest = _digest(target, command[1:])
    stamp = STAMPS / hashlib.sha256(str(path).encode()).hexdigest()[:16]
    if not force and path.is_file() and stamp.is_file() and stamp.read_text() == digest:
        return
    sys.stderr.write(f"native: compiling {target.output} for {arch}\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target and then renamed: a process that has the old library mapped keeps it whole.
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    stand_in = path.with_name(f".{target.needed}.{os.getpid()}.so") if target.needed else None
    try:
        if stand_in:
            empty = [
                *compiler(arch, target.libc),
                "-shared",
                "-fPIC",
                f"-Wl,-soname,{target.needed}",
                "-x",
                "c",
                os.devnull,
            ]
            subprocess.run([*empty, "-o", str(stand_in)], check=True)
        needed = ["-Wl,--no-as-needed", str(stand_in)] if stand_in else []
        subprocess.run([*command, "-o", str(fresh), *map(str, target.files()), *needed, *target.libraries], check=True)
        fresh.replace(path)
    except FileNotFoundError as error:
        raise SystemExit(f"native/build.py: no compiler {command[0]!r}: pip install ziglang, or set CC") from error
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"native/build.py: {target.output} does not compile") from error
    finally:
        fresh.unlink(missing_ok=True)
        if stand_in:
            stand_in.unlink(missing_ok=True)
    STAMPS.mkdir(parents=True, exist_ok=True)
    stamp.write_text(digest)


def _digest(target: Target, flags: list[str]) -> str:
    state = hashlib.sha256("\0".join([*flags, *target.libraries, target.needed]).encode())
    for path in target.inputs():
        state.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return state.hexdigest()


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc, valid-type, unused-ignore]  # object without hatchling
    """hatchling: a wheel carries the libraries and is tagged for the platform that they run on."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        arch = os.environ.get("GPUPLANE_ARCH") or platform.machine()
        build(arch, OUTPUT)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_17_{arch}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile the C parts of gpuplane.")
    parser.add_argument("target", nargs="*", help=f"some of {', '.join(t.output for t in TARGETS)}; all by default")
    parser.add_argument("--arch", default=platform.machine(), choices=["x86_64", "aarch64"])
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder (default: src/gpuplane/_native)")
    parser.add_argument("--force", action="store_true", help="compile even what is up to date")
    options = parser.parse_args()
    unknown = set(options.target) - {target.output for target in TARGETS}
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}")
    build(options.arch, options.output, tuple(options.target), force=options.force)


if __name__ == "__main__":
    main()
