"""The network of a simulated machine: package repositories and NVIDIA's downloads, as files of its hardware.

The format is that of packages/simgpu/native/tools: driver.c and packages.c. A test removes a line for what a mirror
lacks.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from kubekit.errors import Terminal
from simgpu import NATIVE
from simgpu.machines.machine import NodeMachine
from simgpu.state import driver_branches

MIRROR: Final = "var/lib/simgpu/mirror"
_LIBRARIES: Final = ("libcuda.so.1", "libnvidia-ml.so.1")
_PROGRAMS: Final = ("nvidia-cuda-mps-control", "nvidia-smi")

# The version of a branch that packages have; a branch without one can be downloaded only.
_PACKAGED: Final = {
    470: "470.256.02",
    535: "535.161.08",
    550: "550.163.01",
    570: "570.133.20",
    580: "580.82.07",
}
_NO_VERSION: Final = "-"
_PACKAGES: Final = {
    "debian": """\
gcc
gcc-12
make
libc6-dev
libelf-dev
kmod
file
curl
ca-certificates
linux-headers-{kernel}
linux-signatures-nvidia-{kernel}
linux-modules-nvidia-*-{kernel}
linux-objects-nvidia-*-{kernel}
nvidia-utils-*
nvidia-headless-*
libnvidia-[!n]*
""",
    "rhel": """\
gcc
make
elfutils-libelf-devel
kmod
cpio
/usr/bin/curl
ca-certificates
kernel-devel-{kernel}
""",
    "suse": """\
gcc
make
libelf-devel
kmod
curl
ca-certificates
kernel-*-devel
nvidia-open-driver-*
""",
}
# What NVIDIA's CUDA repository has.
_CUDA: Final = """\
kmod-nvidia-*
nvidia-*
libnvidia-*
"""


def mirror(machine: NodeMachine) -> dict[str, str]:
    """Path below the mirror -> text: the lists."""
    rows = (
        f"{branch} {major * 1000 + minor * 10} {_PACKAGED.get(branch, _NO_VERSION)}\n"
        for branch, (major, minor) in driver_branches().items()
    )
    return {
        "drivers": "".join(rows),
        "kernels": f"{machine.kernel}\n",
        "cuda": _CUDA,
        "packages": _PACKAGES[machine.family].format(kernel=machine.kernel),
    }


def write_mirror(root: Path, machine: NodeMachine) -> None:
    """Write the machine's network. Raises Terminal: the driver is not built."""
    place = root / MIRROR
    for directory, parts in (("lib", _LIBRARIES), ("bin", _PROGRAMS)):
        (place / directory).mkdir(parents=True)
        for name in parts:
            if not (NATIVE / name).is_file():
                raise Terminal("the driver is not built", where=str(NATIVE / name), cure="python native/build.py")
            shutil.copyfile(NATIVE / name, place / directory / name)
    for name, text in mirror(machine).items():
        (place / name).write_text(text, encoding="utf-8")
