"""Machines that the driver's installer refuses, each with what its printed cure does there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpuplane.driver import WantedDriver, install
from packages.gpuplane.tests.driver.machine import NEWER, PACKAGED, TOOLS, VERSION, WANTED, Machine

GPUS = ("0000:00:10.0", "0000:00:11.0")
BLACKLIST = "etc/modprobe.d/nouveau.conf"
SHORT = "MemAvailable:       20480 kB\n"


def without_gpus(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    for address in GPUS:
        shutil.rmtree(machine.root / "sys/bus/pci/devices" / address)
    return wanted


def seated(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """The GPU is in its slot, or passed to the virtual machine: `lspci -d 10de:` lists it."""
    machine.pci(GPUS[0], "0x030200", "0x2330")
    return wanted


def preinstalled(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """A driver of the host's own, as a person installs it: libraries, and modules for the running kernel."""
    kernel = machine.system.kernels[0]
    machine.write(f"{machine.system.libraries}/libnvidia-ml.so.1", "theirs\n")
    for module in ("nvidia", "nvidia-uvm", "nvidia-modeset"):
        machine.write(f"lib/modules/{kernel}/updates/{module}.ko", f"version={NEWER}\nkind=own\nvermagic={kernel}\n")
    return wanted


def of_no_family(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    machine.write("etc/os-release", "ID=alpine\nVERSION_ID=3.22\n")
    return wanted


def boot_with_nouveau(machine: Machine) -> None:
    """The kernel finds the GPUs, and loads nouveau for the console unless a file forbids it."""
    machine.boot(machine.system.kernels[0])
    file = machine.root / BLACKLIST
    if not (file.exists() and "blacklist nouveau" in file.read_text().splitlines()):
        machine.write("proc/modules", "nouveau 2367488 2 - Live 0x0\nvideo 65536 1 nouveau, Live 0x0\n")


def console_on_nouveau(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    boot_with_nouveau(machine)
    return wanted


def blacklisted(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    machine.write(BLACKLIST, "blacklist nouveau\n")
    boot_with_nouveau(machine)
    return wanted


async def in_use(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """A program computes on a GPU, and the policy gets another version."""
    await install(machine.host, wanted=WANTED)
    machine.hold(1)
    return msgspec.structs.replace(wanted, version=NEWER)


def stopped(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    machine.hold(0)
    return wanted


def rebooted(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    machine.boot(machine.system.kernels[0])
    return wanted


async def deaf_daemon(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """The driver's daemon hangs in the kernel's driver and does not follow SIGTERM."""
    await install(machine.host, wanted=WANTED)
    tool = machine.root / "usr/bin/kill"
    tool.write_text('#!/bin/sh\nif [ "$1" = -TERM ]; then exit 0; fi\nexec "$TOOLS/kill" -TERM "$2"\n')
    return msgspec.structs.replace(wanted, version=NEWER)


async def killed(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """`kill -KILL` of the process that the message names."""
    (found,) = (path for path in (machine.root / "proc").glob("*/comm") if path.read_text() == "nvidia-persiste\n")
    await machine.on_the_host("kill", "-KILL", found.parent.name)
    return wanted


def latest_precompiled(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    machine.stock("*")
    return msgspec.structs.replace(wanted, version="latest", precompiled=True)


def wants_old_open(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    offers("510.108.03")(machine, wanted)
    return msgspec.structs.replace(wanted, version="510.108.03", kind="open")


def offers(version: str) -> Callable[[Machine, WantedDriver], WantedDriver]:
    """The mirror has an older driver too."""

    def before(machine: Machine, wanted: WantedDriver) -> WantedDriver:
        (machine.state / "versions").write_text(f"{version}\n{VERSION}\n{NEWER}\npackaged {PACKAGED}\n")
        return wanted

    return before


def two_generations(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    machine.pci(GPUS[1], "0x030200", "0x2901")
    return wanted


def one_generation(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    shutil.rmtree(machine.root / "sys/bus/pci/devices" / GPUS[1])
    return wanted


def lacking(tool: str) -> Callable[[Machine, WantedDriver], WantedDriver]:
    def before(machine: Machine, wanted: WantedDriver) -> WantedDriver:
        (machine.root / "usr/bin" / tool).unlink()
        return wanted

    return before


def packaged(tool: str) -> Callable[[Machine, WantedDriver], WantedDriver]:
    """The package of the tool is installed on the node."""

    def by(machine: Machine, wanted: WantedDriver) -> WantedDriver:
        shutil.copy(TOOLS / tool, machine.root / "usr/bin" / tool)
        return wanted

    return by


def short_of_memory(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """The kernel ends the package manager for as long as the node has no memory, and logs that."""
    machine.write("proc/meminfo", SHORT)
    wrap(machine.root / "usr/bin/apt-get", f'grep -q "{SHORT.strip()}" "$MACHINE/proc/meminfo"',
        'echo "Out of memory: Killed process 812 (apt-get)" >>"$STATE/dmesg"; kill -KILL $$')  # fmt: skip
    return wanted


async def with_memory(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """dmesg names the cause; what else has the memory is ended."""
    assert "Out of memory: Killed process 812 (apt-get)" in (await machine.on_the_host("dmesg")).stdout
    machine.write("proc/meminfo", "MemAvailable:     8388608 kB\n")
    return wanted


def wrap(tool: Path, condition: str, then: str) -> None:
    """Let a tool do something else for as long as a shell's condition holds."""
    text = tool.read_text()
    first, _, rest = text.partition("\n")
    tool.write_text(f"{first}\nif {condition}; then {then}; fi\n{rest}")
    assert os.access(tool, os.X_OK)
