"""Causes of failures on a machine, each with the way in which a person removes it.

A cause is a state that the machine's tools meet: a file that fills the file system, a process that holds a lock, a
module that has the GPUs. A constant next to it is the shell's condition under which a tool stops to fail.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gpuplane import names
from gpuplane.driver import WantedDriver, install
from gpuplane.driver.signing import KEY_PLACES, SECURE_BOOT, TRUSTED
from packages.gpuplane.tests.driver.machine import NEWER, WANTED, Machine

BALLAST = "var/lib/gpuplane/left-by-others.tar"
LOCKS = {"ubuntu": "var/lib/dpkg/lock-frontend", "sles": "run/zypp.pid"}
GPU = "sys/bus/pci/devices/0000:00:1{index}.0/driver"

# The file system of the machine has 1 MiB for what lies below /var/lib/gpuplane.
SPACE_FREED = '[ "$(du -s -k "$MACHINE/var/lib/gpuplane" | cut -f 1)" -lt 1024 ]'
WRITABLE = 'grep -q "^/dev/sda1 / ext4 rw" "$MACHINE/proc/1/mounts"'
UNLOCKED = f'flock -n "$MACHINE/{LOCKS["ubuntu"]}" true'
ENDED = f'! kill -0 "$(cat "$MACHINE/{LOCKS["sles"]}")" 2>/dev/null'


def full(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    machine.write(BALLAST, "x" * (2 << 20))
    return wanted


def freed(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    (machine.root / BALLAST).unlink()
    return wanted


def read_only(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    machine.write("proc/1/mounts", machine.mounts().replace(" / ext4 rw", " / ext4 ro"))
    return wanted


async def remounted(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    assert (await machine.on_the_host("mount", "-o", "remount,rw", "/")).code == 0
    return wanted


def locked(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """Another package manager is at work: a process that has the lock's file open and locked."""
    lock = machine.root / LOCKS["sles" if "zypper" in machine.system.programs else "ubuntu"]
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        other = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[file.fileno()])
    lock.write_text(f"{other.pid}\n")
    machine.others.append(other)
    return wanted


def waited(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """The other package manager has finished its work."""
    (other,) = machine.others
    assert other.stdin is not None
    other.stdin.close()
    assert other.wait() == 0
    return wanted


def stuck_ended(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """End the process that `fuser -v` names."""
    (other,) = machine.others
    found = list(users_of(machine.root / LOCKS["sles"]))
    assert found == [other.pid]
    os.kill(found[0], signal.SIGTERM)
    with other:  # closes its input
        assert other.wait() == -signal.SIGTERM
    return wanted


def users_of(path: Path) -> Iterator[int]:
    """The processes that have a file open, as fuser(1) finds them."""
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(link.readlink() == path.resolve() for link in folder.iterdir()):
                yield int(folder.parent.name)
        except OSError:  # another user's, or ended
            continue


def rejected(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """Secure Boot with a machine owner's key, on firmware that does not list the keys that it trusts."""
    private, certificate = KEY_PLACES[0]
    machine.write(SECURE_BOOT, "\x06\0\0\0\x01")
    machine.write(private.lstrip("/"), "private\n")
    machine.write(certificate.lstrip("/"), "certificate of the host\n")
    return wanted


def enrolled(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """`mokutil --import`, a reboot, and the confirmation at the console."""
    machine.write(TRUSTED, "\x06\0\0\0 vendor; certificate of the host\n")
    machine.boot(machine.system.kernels[0])
    return wanted


def switched_off(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """Secure Boot is switched off in the firmware's settings, which takes a reboot."""
    machine.write(SECURE_BOOT, "\x06\0\0\0\0")
    machine.boot(machine.system.kernels[0])
    return wanted


def passed_through(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """vfio-pci has the GPUs, for virtual machines."""
    (machine.root / "sys/bus/pci/drivers/vfio-pci").mkdir(parents=True)
    for index in range(2):
        (machine.root / GPU.format(index=index)).symlink_to("../../drivers/vfio-pci")
    return wanted


def unbound(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """The driver that `lspci -k` names loses the GPUs."""
    for index in range(2):
        link = machine.root / GPU.format(index=index)
        assert link.readlink().name == "vfio-pci"
        link.unlink()
    return wanted


async def of_another_kernel(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """The modules of an installed driver were replaced by those of another kernel."""
    await install(machine.host, wanted=wanted)
    machine.boot(machine.system.kernels[0])
    modules = list((machine.root / names.DRIVER_STORE).rglob("*.ko"))
    assert modules
    for module in modules:
        module.write_text(module.read_text().replace("vermagic=", "vermagic=other-"))
    return wanted


async def opened_meanwhile(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """A program opens a GPU after the installer has counted the users, and before the module is removed."""
    await install(machine.host, wanted=WANTED)
    machine.before = lambda command: machine.hold(1) if command == "rmmod nvidia" else None
    return msgspec.structs.replace(wanted, version=NEWER)


def users_stopped(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    machine.before = lambda _: None
    machine.hold(0)
    return wanted


def number_taken(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """Another module has registered the major number of NVIDIA's character devices."""
    (machine.state / "modules").write_text("other_chardev\n")
    machine.write("proc/modules", "other_chardev 1 0 - Live 0x0\n")
    machine.write("proc/devices", "195 other_chardev\n")
    return wanted


async def number_returned(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """The kernel's log names the cause."""
    log = (await machine.on_the_host("dmesg")).stdout
    assert "NVRM: register_chrdev() failed!" in log
    assert (await machine.on_the_host("rmmod", "other_chardev")).code == 0
    return wanted


def directory_for_node(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """A container that mounts /dev/nvidiactl was started before the driver: its runtime has made a directory."""
    (machine.root / "dev/nvidiactl").mkdir(parents=True)
    return wanted


async def directory_removed(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """The daemon, run by hand, names the cause."""
    said = (await machine.on_the_host("nvidia-persistenced", "--verbose", inside=names.DRIVER_ROOT)).stderr
    assert "Please ensure that the NVIDIA device files (/dev/nvidia*) exist" in said
    (machine.root / "dev/nvidiactl").rmdir()
    return wanted
