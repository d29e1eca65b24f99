"""The simulated driver as a package: what it installs, and in which version.

Simulated hardware (a host root with `var/lib/simgpu/state`) runs with one driver version only, the one it was made for,
as real kernel modules and libraries have to be of one version. It stands in the head of the hardware's state file; the
layout is that of packages/simgpu/native/simgpu/state.h.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from importlib import resources

import msgspec

from gpuplane import names
from gpuplane.host import Host, ManagedFile, ManagedLink

MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset")
_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
_PROGRAMS = ("nvidia-cuda-mps-control", "nvidia-smi")
_HEAD = struct.Struct("<Q4I2Q32s")  # magic, layout, GPUs, CUDA, futex, events, size, driver version
_MAGIC = 0x0055504740494D53


class Package(msgspec.Struct, frozen=True):
    """A driver that can be installed. `missing` names what is not in this build of gpuplane; then it cannot be."""

    version: str
    digest: str
    missing: tuple[str, ...] = ()


def find_package(host: Host) -> Package | None:
    """The driver for this host's hardware; None when the hardware is not simulated."""
    head = host.read(names.SIMGPU_STATE, limit=_HEAD.size)
    if head is None:
        return None
    version = hardware_version(head)
    carried = {**_carried(_LIBRARIES), **_carried(_PROGRAMS)}
    missing = tuple(name for name in (*_LIBRARIES, *_PROGRAMS) if name not in carried)
    digest = hashlib.sha256(version.encode())
    for name in sorted(carried):
        digest.update(hashlib.sha256(carried[name]).digest())
    return Package(version, f"simulated-{version}-{digest.hexdigest()[:12]}", missing)


def hardware_version(head: bytes) -> str:
    """The driver version that simulated hardware needs, from the head of its state; "" when it is no such state."""
    if len(head) < _HEAD.size:
        return ""
    magic, *_, version = _HEAD.unpack_from(head)
    return version.rstrip(b"\0").decode("ascii", errors="replace") if magic == _MAGIC else ""


def files(package: Package, library_dir: str, kernel: str) -> tuple[ManagedFile | ManagedLink, ...]:
    """Return the files of the package on a host: libraries with their links, programs, and kernel modules."""
    wanted: list[ManagedFile | ManagedLink] = []
    for soname, data in sorted(_carried(_LIBRARIES).items()):
        base = soname.removesuffix(".1")
        real = f"{base}.{package.version}"
        wanted.append(ManagedFile(path=f"{library_dir}/{real}", data=data, mode=0o755))
        wanted.append(ManagedLink(path=f"{library_dir}/{soname}", target=real))
        wanted.append(ManagedLink(path=f"{library_dir}/{base}", target=soname))
    for name, data in sorted(_carried(_PROGRAMS).items()):
        wanted.append(ManagedFile(path=f"usr/bin/{name}", data=data, mode=0o755))
    for module in MODULES:
        text = f"name={module}\nversion={package.version}\nvermagic={kernel}\n"
        wanted.append(ManagedFile(path=f"lib/modules/{kernel}/kernel/drivers/video/{module}.ko", data=text.encode()))
    return tuple(wanted)


@functools.cache
def _carried(wanted: tuple[str, ...]) -> dict[str, bytes]:
    """Those of the simulated driver's files that this build carries."""
    native = resources.files("simgpu") / "_native"
    return {name: (native / name).read_bytes() for name in wanted if (native / name).is_file()}
