"""The description of a simulated machine: hardware, operating system, kernel, container runtime. The table is
`machines.toml`.
"""

from __future__ import annotations

import platform
import tomllib
from functools import lru_cache
from importlib.resources import files
from typing import Final

import msgspec

from kubekit.errors import InvalidInput

DEMO_MACHINES: Final = ("h100-ubuntu22", "t4-ubuntu18", "a10g-rhel9")
"""The machines of `gpuplane demo`, in the order of sim-1, sim-2, sim-3."""


class CPU(msgspec.Struct, frozen=True):
    """As /proc/cpuinfo shows it; `flags` separated by spaces."""

    vendor: str
    family: int
    model: int
    name: str
    flags: str


class OS(msgspec.Struct, frozen=True):
    """Fields of os-release."""

    id: str
    version_id: str
    name: str
    pretty_name: str
    id_like: str = ""


class _Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a machine as its row in the table has them."""

    kernel: str
    runtime: str  # containerd, docker, cri-o
    runtime_version: str
    cpus: int
    memory_gib: int
    gpus: str = ""
    driver: str = ""
    preinstalled: bool = False
    instance_type: str = ""
    compiler: str = "gcc"


class NodeMachine(_Hardware, frozen=True, kw_only=True):
    """One machine. `gpus` names a profile of `simgpu`, "" for none; `driver` is the version that is there from the
    start where it is `preinstalled`; `compiler` what its kernel was built with."""

    name: str
    os: OS
    cpu: CPU

    @property
    def memory_kib(self) -> int:
        return self.memory_gib << 20

    @property
    def os_image(self) -> str:
        return self.os.pretty_name

    @property
    def go_arch(self) -> str:
        """The processor as Kubernetes spells it. Programs are the host's own, so it is the host's."""
        return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())

    @property
    def family(self) -> str:
        """The family of distributions: debian, suse or rhel."""
        words = (self.os.id, *self.os.id_like.split())
        return "debian" if "debian" in words else "suse" if "suse" in words else "rhel"

    @property
    def library_dir(self) -> str:
        """Return the distribution's folder of shared libraries, relative to the root."""
        return f"usr/lib/{platform.machine()}-linux-gnu" if self.family == "debian" else "usr/lib64"


class _Row(_Hardware, frozen=True, kw_only=True):
    os: str
    cpu: str


class _Table(msgspec.Struct):
    cpu: dict[str, CPU]
    os: dict[str, OS]
    machine: dict[str, _Row]


@lru_cache(maxsize=1)
def machines() -> dict[str, NodeMachine]:
    """All machines by name."""
    text = files(__package__).joinpath("machines.toml").read_text(encoding="utf-8")
    table = msgspec.convert(tomllib.loads(text), _Table)
    return {
        name: NodeMachine(
            **{**msgspec.structs.asdict(row), "name": name, "os": table.os[row.os], "cpu": table.cpu[row.cpu]}
        )
        for name, row in table.machine.items()
    }


def machine(name: str) -> NodeMachine:
    """The machine of this name. Raises InvalidInput with the names there are."""
    try:
        return machines()[name]
    except KeyError:
        raise InvalidInput(f"no machine {name!r}", where="machine", cure=f"one of {', '.join(machines())}") from None
