"""Compiles the C parts: in place with `python native/build.py`, and as the build hook of the wheel.

zig's C compiler (a Python package) is used because what it links against glibc 2.17 loads in any container that GPU
users still have; $CC replaces it where zig cannot run. Each target is a row of TARGETS.

Invariants:

- What was compiled is kept in the user's cache directory under the digest of sources, flags and compiler, so that
  another clone compiles nothing and needs no compiler.
- Outputs of cache and package change by a rename: a process that has the old library mapped keeps it whole.
- What the embedded cluster needs links no static libc: zig would compile all of musl for it, which takes a minute.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # `python native/build.py` needs no hatchling
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / "packages"
LOCK = ROOT / "requirements.lock"
UNUSED_DAYS = 30  # after which the cache forgets what nobody used
COMMON_FLAGS = ("-std=c11", "-O2", "-g0", "-Wall", "-Wextra", "-D_GNU_SOURCE", "-fno-sanitize=all")
GLIBC = "2.17"


class Target(NamedTuple):  # no dataclass: hatchling executes this file without making it a module
    """One output file of a package.

    `sources` are patterns relative to the package's native/; `libc` is "gnu" or "musl" (then static); `needed` is a
    library that the output needs by this name, and that is not there when it is linked; `simulation`: embedded clusters
    need it.
    """

    package: str
    output: str
    sources: tuple[str, ...]
    flags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    libc: str = "gnu"
    needed: str = ""
    simulation: bool = True

    def files(self) -> list[Path]:
        return sorted(path for pattern in self.sources for path in self.root().glob(pattern))

    def root(self) -> Path:
        return PACKAGES / self.package / "native"

    def place(self, output: Path | None) -> Path:
        """Where it is written: in `output`, or else in its package."""
        return (output or PACKAGES / self.package / "src" / self.package / "_native") / self.output

    def inputs(self) -> list[Path]:
        """Everything whose change asks for a new build: the sources, and all headers beside them."""
        folders = {path.parent for path in self.files()}
        folders |= {folder.parent for folder in folders if folder.parent != self.root()}
        headers = [path for folder in folders for pattern in ("*.h", "*.def") for path in folder.glob(pattern)]
        return sorted([*self.files(), *headers])


_SHARED = ("-shared", "-s", "-fPIC", "-fvisibility=hidden", "-Wl,--no-undefined")
# A driver's library calls its own functions, also where the limiter stands before it.
_DRIVER = (*_SHARED, "-Wl,-Bsymbolic")
# A few words of each thread, read by every launch: no call to find them.
_LIMITER = (*_DRIVER, "-ftls-model=initial-exec", "-Wl,-rpath,$ORIGIN", "-Wl,--enable-new-dtags", "-Wl,-z,origin")
# Runs on a simulated node too, whose only libc is there (simgpu/machines/root.py); elsewhere the machine's is found.
_TOOL = ("-s", "-pie", "-fPIE", "-Wl,-rpath,/usr/lib/simhost")
TARGETS = (
    Target(
        "simgpu",
        "libcuda.so.1",
        ("simgpu/*.c", "simgpu/ptx/*.c", "simgpu/cuda/*.c"),
        (*_DRIVER, "-Wl,-soname,libcuda.so.1"),
        ("-lpthread", "-lm", "-ldl"),
    ),
    Target(
        "simgpu",
        "libnvidia-ml.so.1",
        ("simgpu/*.c", "simgpu/nvml/*.c"),
        (*_DRIVER, "-Wl,-soname,libnvidia-ml.so.1"),
        ("-lpthread", "-lm", "-ldl"),
    ),
    # The limiter has the names of the real libraries, so it lies in a folder of its own.
    Target(
        "gpuplane",
        "limiter/libcuda.so.1",
        ("limiter/*.c", "limiter/cuda/*.c"),
        (*_LIMITER, "-Wl,-soname,libcuda.so.1"),
        ("-lpthread", "-ldl"),
        needed="libcuda.so.gpuplane-real",
    ),
    Target(
        "gpuplane",
        "limiter/libnvidia-ml.so.1",
        ("limiter/*.c", "limiter/nvml/*.c"),
        (*_LIMITER, "-Wl,-soname,libnvidia-ml.so.1"),
        ("-lpthread", "-ldl"),
        needed="libnvidia-ml.so.gpuplane-real",
    ),
    # Its names without a version, which some programs ask for.
    *(
        Target(
            "gpuplane",
            f"limiter/{name}",
            ("limiter/plain/*.c",),
            (*_LIMITER, f"-Wl,-soname,{name}"),
            needed=f"{name}.1",
        )
        for name in ("libcuda.so", "libnvidia-ml.so")
    ),
    Target("gpuplane", "limiter/arbiter", ("limiter/arbiter/*.c",), ("-s", "-pie", "-fPIE")),
    Target("simgpu", "nvidia-cuda-mps-control", ("simgpu/mps/*.c",), _TOOL),
    Target("simgpu", "nvidia-smi", ("smi/*.c",), _TOOL, ("-ldl",)),
    Target("simgpu", "simhost", ("tools/*.c",), _TOOL),
    Target("simgpu", "programs/chroot", ("chroot/*.c",), _TOOL),
    Target("tinykube", "container-shim", ("shim/*.c",), _TOOL),
    # Written to real nodes, whose libc is anybody's.
    Target("gpuplane", "cdi-hook", ("cdihook/*.c",), ("-static", "-s"), libc="musl", simulation=False),
)


def compiler(arch: str, libc: str) -> list[str]:
    """The command that compiles for `arch`: zig, or $CC, which then has to be a compiler for that machine."""
    own = os.environ.get("CC")
    if own:
        return shlex.split(own)
    # Other compilers warn of other things: theirs are no errors.
    zig = [sys.executable, "-m", "ziglang", "cc", "-Werror", "-target"]
    if libc == "musl":
        return [*zig, f"{arch}-linux-musl"]
    # Nothing here needs the compiler's own runtime, which zig would compile first, for longer than all that is here.
    return [*zig, f"{arch}-linux-gnu.{GLIBC}", "-rtlib=none"]


def build(
    arch: str,
    output: Path | None = None,
    targets: tuple[Target, ...] = TARGETS,
    *,
    force: bool = False,
    say: Callable[[str], object] = sys.stderr.write,
) -> None:
    """Compile what the cache lacks of the targets, and put all into `output`, or else each into its package.

    Raises:
        SystemExit: the compiler failed; its output was printed.
    """
    # zig has a file open for every object of a libc that it compiles: the 1,024 of a usual shell are too few.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    missing = [target for target in targets if force or not cached(target, arch).is_file()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(lambda target: _compile(target, arch, say), missing):
            pass
    for target in targets:
        kept, path = cached(target, arch), target.place(output)
        os.utime(kept)
        if not (path.is_file() and path.read_bytes() == kept.read_bytes()):
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
            shutil.copy(kept, fresh)
            fresh.replace(path)
    _forget()


def to_compile(arch: str, targets: tuple[Target, ...]) -> list[Target]:
    """The targets that the cache lacks."""
    return [target for target in targets if not cached(target, arch).is_file()]


def cached(target: Target, arch: str) -> Path:
    """Where the compiled form of the target's present sources is kept."""
    if not target.files():
        raise SystemExit(
            f"native/build.py: {target.output} has no sources in {target.package}: {', '.join(target.sources)}"
        )
    words = (target.libc, arch, *COMMON_FLAGS, *target.flags, *target.libraries, target.needed, _compiler_version())
    state = hashlib.sha256("\0".join(words).encode())
    for path in target.inputs():
        content = path.read_bytes()
        state.update(f"{path.relative_to(ROOT)}\0{len(content)}\0".encode() + content)
    return _cache() / state.hexdigest()[:32] / Path(target.output).name


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuplane" / "native"


@cache
def _compiler_version() -> str:
    """What tells one compiler from another. zig's is known from the lock where zig is not installed yet."""
    own = os.environ.get("CC")
    if own:
        try:
            said = subprocess.run([*shlex.split(own), "--version"], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return own
        return f"{own} {said.stdout}"
    try:
        return f"zig {metadata.version('ziglang')}"
    except metadata.PackageNotFoundError:
        pinned = re.search(r"^ziglang==(\S+)", LOCK.read_text(), re.MULTILINE)
        return f"zig {pinned.group(1) if pinned else ''}"


def _compile(target: Target, arch: str, say: Callable[[str], object]) -> None:
    kept = cached(target, arch)
    say(f"native: compiling {target.output} for {arch}\n")
    work = kept.parent.with_name(f".{kept.parent.name}.{os.getpid()}")
    fresh = work / kept.name
    command = [*compiler(arch, target.libc), *COMMON_FLAGS]
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(
            f"native/build.py: the cache cannot be written: {error}; make {_cache()} writable, or set XDG_CACHE_HOME"
        ) from error
    try:
        needed = []
        if target.needed:
            stand_in = work / "stand-in.so"
            # NB: with the flags of the rest. With others zig compiles what it adds of libc a second time.
            empty = ("-shared", "-fPIC", f"-Wl,-soname,{target.needed}", "-x", "c", os.devnull)
            subprocess.run([*command, *empty, "-o", str(stand_in)], check=True)
            needed = ["-Wl,--no-as-needed", str(stand_in)]
        sources = map(str, target.files())
        # NB: zig 0.17.0 says "failed to spawn: OutOfMemory" where its linker takes just 59 arguments; one more is fine.
        subprocess.run([*command, *target.flags, "-o", str(fresh), *sources, *needed, *target.libraries], check=True)
        kept.parent.mkdir(exist_ok=True)
        fresh.replace(kept)
    except FileNotFoundError as error:
        raise SystemExit(f"native/build.py: no compiler {command[0]!r}: pip install ziglang, or set CC") from error
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"native/build.py: {target.output} does not compile") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _forget() -> None:
    """Remove from the cache what nobody used for long."""
    oldest = time.time() - UNUSED_DAYS * 86400
    for entry in _cache().glob("*/*"):
        if entry.stat().st_mtime < oldest:
            shutil.rmtree(entry.parent, ignore_errors=True)


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc, valid-type, unused-ignore]  # object without hatchling
    """hatchling: a wheel carries the libraries and is tagged for the platform that they run on."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":  # a clone compiles by itself, see the Makefile
            return
        arch = os.environ.get("GPUPLANE_ARCH") or platform.machine()
        mine = tuple(target for target in TARGETS if target.package == Path(self.root).name)
        build(arch, targets=mine)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_17_{arch}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile the C parts of gpuplane.")
    parser.add_argument("target", nargs="*", help=f"some of {', '.join(t.output for t in TARGETS)}; all by default")
    parser.add_argument("--arch", default=platform.machine(), choices=["x86_64", "aarch64"])
    parser.add_argument("--output", type=Path, help="folder (default: _native in each package)")
    parser.add_argument("--force", action="store_true", help="compile even what is up to date")
    parser.add_argument("--simulation", action="store_true", help="only what embedded clusters need")
    options = parser.parse_args()
    unknown = set(options.target) - {target.output for target in TARGETS}
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}")
    targets = tuple(
        target
        for target in TARGETS
        if (not options.target or target.output in options.target) and (target.simulation or not options.simulation)
    )
    build(options.arch, options.output, targets, force=options.force)


if __name__ == "__main__":
    main()
