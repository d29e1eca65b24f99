"""Mounts, links and variables that make a program load the interposed libraries before the driver's.

How it works (see docs/components/limiter.md): each library of ours carries the driver's SONAME and needs the real one
under another name, `libcuda.so.gpuplane-real`, which it finds in its own directory. So all that matters is that the
interposed library is loaded first. In a container `/etc/ld.so.preload` makes it so for every program with glibc. The
libraries lie where images made for GPUs look first, so that programs with another libc find them too. LD_PRELOAD is not
set: musl ends a program that cannot load what it names, and ours need glibc, as NVIDIA's do. For a command of this
machine LD_LIBRARY_PATH is enough.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

import gpuplane
from gpuplane import names
from gpuplane.host import HostMount
from gpuplane.limits.facts import LimitBackend, Limits
from gpuplane.limits.libraries import CUDA, NVML, RealLibraries
from gpuplane.limits.processes import PROC, start_of
from gpuplane.limits.store import ShareStore
from kubekit.errors import Terminal

LIMITER: Final = Path(gpuplane.__file__).parent / "_native" / "limiter"
# By the names that programs ask for; those without a version are empty and need the others.
LIBRARIES: Final = (CUDA, NVML, "libcuda.so", "libnvidia-ml.so")
_REAL: Final = ".gpuplane-real"
_PRELOAD: Final = "/etc/ld.so.preload"


class Injection(msgspec.Struct, frozen=True):
    """The mounts, links and variables of a container with limits."""

    mounts: tuple[HostMount, ...] = ()
    envs: dict[str, str] = {}


def real_name(library: str) -> str:
    """`libcuda.so.1` -> `libcuda.so.gpuplane-real`, by which our library needs the driver's."""
    return library.removesuffix(".1") + _REAL


def limiter(place: Path = LIMITER) -> dict[str, Path]:
    """The interposed libraries by name, which is their SONAME. Raises Terminal when they are not built."""
    found = {name: place / name for name in LIBRARIES}
    missing = next((path for path in found.values() if not path.is_file()), None)
    if missing is not None:
        raise Terminal("the limiter is not built", where=str(missing), cure="python native/build.py")
    return found


def install(store: ShareStore, place: Path = LIMITER) -> None:
    """Put the libraries where a node's containers get them from; files that are equal already are not touched.

    A container that runs keeps what it has mapped, since files are replaced and not changed.
    """
    folder = store.base / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in limiter(place).items():
        target = folder / name
        if not target.is_file() or target.read_bytes() != path.read_bytes():
            fresh = target.with_name(f".{name}.new")
            shutil.copyfile(path, fresh)
            fresh.chmod(0o755)
            fresh.rename(target)
    preload = folder / "ld.so.preload"
    text = "".join(f"{names.LIMITER_MOUNT}/{name}\n" for name in LIBRARIES)
    if not preload.is_file() or preload.read_text() != text:
        fresh = preload.with_name(".ld.so.preload.new")
        fresh.write_text(text)
        fresh.rename(preload)


def container(store: ShareStore, share: str, real: RealLibraries, *, base: Path | None = None) -> Injection:
    """Return the injection for a container with this share, from interposed libraries that `install` has put in place.

    Args:
        real: the driver's libraries, as paths of the host.
        base: the store's base as a path of the host, where we see it under another.
    """
    root = store.base if base is None else base
    directory = root / store.directory(share).relative_to(store.base)
    pages = names.LIMITS_MOUNT
    mounts = [HostMount(str(directory), pages), HostMount(str(directory / "usage"), f"{pages}/usage", read_only=False)]
    mounts += [HostMount(str(root / "lib" / name), f"{names.LIMITER_MOUNT}/{name}") for name in LIBRARIES]
    for name, path in {CUDA: real.cuda, NVML: real.nvml}.items():
        mounts.append(HostMount(str(path), f"{names.LIMITER_MOUNT}/{real_name(name)}"))
    mounts.append(HostMount(str(root / "lib" / "ld.so.preload"), _PRELOAD))
    return Injection(tuple(mounts), {names.LIMITS_ENV: pages})


def command(directory: Path, limits: Limits, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables with which a command of this machine runs under the limits in `directory`, after `link` there."""
    search = [str(directory / "lib"), *filter(None, environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))]
    return {names.LIMITS_ENV: str(directory), "LD_LIBRARY_PATH": os.pathsep.join(search), **visible(limits)}


def link(directory: Path, real: RealLibraries, place: Path = LIMITER) -> None:
    """Put the libraries where `command` says that they are."""
    folder = directory / "lib"
    folder.mkdir(exist_ok=True)
    for name, path in limiter(place).items():
        _link(folder / name, str(path))
    for name, path in {CUDA: real.cuda, NVML: real.nvml}.items():
        _link(folder / real_name(name), str(path))


def visible(limits: Limits) -> dict[str, str]:
    """Return the variable that makes only the GPUs of the limits visible to a program."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(limit.uuid for limit in limits.gpus)}


def mps(limits: Limits) -> dict[str, str]:
    """The variables by which a client of MPS is limited (Volta and newer); a daemon has to run.

    Its core is one number for all GPUs, a part of the multiprocessors and not of time. Memory is by position among the
    visible GPUs, in MiB.

    Source: NVIDIA, "Multi-Process Service", environment variables.
    """
    cores = [limit.core for limit in limits.gpus if limit.core]
    if len(set(cores)) > 1:
        raise Terminal(
            "MPS has one core for all GPUs of a program", where="limits", cure="the same core on each, or interposed"
        )
    memory = [f"{i}={limit.memory_bytes >> 20}M" for i, limit in enumerate(limits.gpus) if limit.memory_bytes]
    envs = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(cores[0])} if cores else {}
    if memory:
        envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(memory)
    return envs


def mps_daemon(environ: Mapping[str, str], proc: Path = PROC) -> None:
    """Raise Terminal when no MPS daemon runs: a program would then run without any limit, unnoticed."""
    place = Path(environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    try:
        pid = int((place / "nvidia-cuda-mps-control.pid").read_text())
    except (FileNotFoundError, ValueError, PermissionError):
        pid = 0
    if not pid or start_of(pid, proc) is None:
        raise Terminal(
            "no MPS daemon runs", where=str(place), cure="nvidia-cuda-mps-control -d; or --backend interposed"
        )


def other_backend(backend: LimitBackend, limits: Limits) -> dict[str, str]:
    """The variables of a share that our libraries do not enforce."""
    return {**visible(limits), **(mps(limits) if backend is LimitBackend.MPS else {})}


def _link(path: Path, target: str) -> None:
    if path.is_symlink() and os.readlink(path) == target:  # noqa: PTH115 - Path.readlink would normalize
        return
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.rename(path)
