"""A simulated machine's file system: what operands, discovery and the runtimes read of a host.

`tree` is the pure part: every file with its text. `build_node` writes it, makes the GPUs' state and installs the driver
where the machine has one. A node's directory D holds:

    root/            the file system; nothing outside it belongs to the machine
    machine.json     which machine it is
    containers/      the kubelet's

Invariant: a node that stands is left as it is, so a restarted cluster finds its machines as they were.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from pathlib import Path
from typing import Final

import msgspec

from kubekit.errors import Terminal
from simgpu import STATE_PATH, create_state, profile
from simgpu.machines.configs import NVIDIA_RUNTIMES, runtime_files
from simgpu.machines.driver import install_driver
from simgpu.machines.machine import NodeMachine
from simgpu.machines.mirror import write_mirror
from simgpu.machines.programs import install_programs
from simgpu.profile import GpuProfile

_LINKS: Final = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "var/run": "../run"}
_DIRECTORIES: Final = (
    *("dev/shm", "dev/pts", "etc/cdi", "home", "opt", "proc/driver", "root", "run/systemd", "sys/module", "tmp"),
    *("usr/local/bin", "usr/lib", "usr/lib64", "usr/bin", "usr/sbin", "var/log"),
    *("var/lib/kubelet/device-plugins", "var/lib/kubelet/pod-resources"),
)
_PLACEHOLDERS: Final = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "termination-log")
_DEVICE_LINKS: Final = {
    "dev/fd": "/proc/self/fd",
    "dev/stdin": "/proc/self/fd/0",
    "dev/stdout": "/proc/self/fd/1",
    "dev/stderr": "/proc/self/fd/2",
}


BOOT_ID: Final = "proc/sys/kernel/random/boot_id"


def tree(machine: NodeMachine, name: str) -> dict[str, str]:
    """Path below the root -> text of every file, but for the driver and the GPUs' state."""
    gpus = profile(machine.gpus) if machine.gpus else None
    files = {
        "etc/os-release": _os_release(machine),
        "etc/hostname": f"{name}\n",
        "etc/machine-id": f"{uuid_hex(name)}\n",
        "proc/version": f"Linux version {machine.kernel} (build@{machine.os.id}) ({machine.compiler}) #1 SMP\n",
        "proc/sys/kernel/osrelease": f"{machine.kernel}\n",
        "proc/sys/kernel/ostype": "Linux\n",
        BOOT_ID: f"{uuid.uuid5(uuid.NAMESPACE_DNS, name)}\n",
        "proc/sys/kernel/arch": f"{os.uname().machine}\n",
        "proc/cpuinfo": _cpuinfo(machine),
        "proc/meminfo": _meminfo(machine),
        "proc/modules": "",
        "proc/1/mounts": "/dev/nvme0n1p1 / ext4 rw,relatime 0 0\n",
        "proc/swaps": "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n",
        "proc/cmdline": f"BOOT_IMAGE=/boot/vmlinuz-{machine.kernel} root=/dev/nvme0n1p1 ro\n",
        f"boot/config-{machine.kernel}": _kernel_config(machine),
        f"lib/modules/{machine.kernel}/modules.dep": "",
        "sys/block/nvme0n1/queue/rotational": "0\n",
        "sys/module/firmware_class/parameters/path": "\n",
        "sys/class/dmi/id/product_name": f"{machine.instance_type or machine.name}\n",
        "sys/devices/system/cpu/online": f"0-{machine.cpus - 1}\n",
        "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": f"0,{max(1, machine.cpus // 2)}\n",
    }
    if machine.os.id in ("rhel", "rocky"):
        files["sys/fs/selinux/enforce"] = "1\n"
    files |= _numa(machine, gpus)
    files |= _pci(gpus)
    files |= runtime_files(machine)
    for unit in ("nvidia-persistenced", "nvidia-fabricmanager", "kubelet", "crio", "containerd", "docker"):
        if unit in ("kubelet", _unit(machine.runtime)) or (unit.startswith("nvidia") and machine.preinstalled):
            files[f"usr/lib/systemd/system/{unit}.service"] = f"[Unit]\nDescription={unit}\n"
    return files


def _unit(runtime: str) -> str:
    return "crio" if runtime == "cri-o" else runtime


def uuid_hex(name: str) -> str:

    return hashlib.sha256(name.encode()).hexdigest()[:32]


def _os_release(machine: NodeMachine) -> str:
    o = machine.os
    lines = {"NAME": o.name, "ID": o.id, "VERSION_ID": o.version_id, "PRETTY_NAME": o.pretty_name}
    if o.id_like:
        lines["ID_LIKE"] = o.id_like
    return "".join(f'{key}="{value}"\n' for key, value in lines.items())


def _cpuinfo(machine: NodeMachine) -> str:
    cpu = machine.cpu
    rest = (
        f"vendor_id\t: {cpu.vendor}\ncpu family\t: {cpu.family}\nmodel\t\t: {cpu.model}\n"
        f"model name\t: {cpu.name}\nsiblings\t: {machine.cpus}\ncpu cores\t: {max(1, machine.cpus // 2)}\n"
        f"flags\t\t: {cpu.flags}\n\n"
    )
    return "".join(f"processor\t: {number}\n{rest}" for number in range(machine.cpus))


def _meminfo(machine: NodeMachine) -> str:
    rows = {"MemTotal": machine.memory_kib, "MemFree": machine.memory_kib // 2, "SwapTotal": 0}
    return "".join(f"{name + ':':<16}{kib:>10} kB\n" for name, kib in rows.items())


def _kernel_config(machine: NodeMachine) -> str:
    built = f'CONFIG_CC_VERSION_TEXT="{machine.compiler}"'
    options = [
        "CONFIG_NO_HZ_COMMON=y",
        "CONFIG_NO_HZ_IDLE=y",
        "CONFIG_NO_HZ=y",
        "CONFIG_MODULES=y",
        "CONFIG_MODVERSIONS=y",
    ]
    if machine.os.id in ("rhel", "rocky"):
        options = ["CONFIG_NO_HZ_COMMON=y", "CONFIG_NO_HZ_FULL=y", "CONFIG_NO_HZ=y", "CONFIG_MODULES=y"]
    head = "# Automatically generated file; DO NOT EDIT."
    return "\n".join([head, built, *options, "# CONFIG_PREEMPT is not set"]) + "\n"


def _numa(machine: NodeMachine, gpus: GpuProfile | None) -> dict[str, str]:
    ranges = gpus.cpus if gpus is not None and gpus.cpus else (((0, machine.cpus - 1),),)
    files = {"sys/devices/system/node/online": f"0-{len(ranges) - 1}\n" if len(ranges) > 1 else "0\n"}
    for number, cpus in enumerate(ranges):
        text = ",".join(f"{first}-{last}" for first, last in cpus)
        files[f"sys/devices/system/node/node{number}/cpulist"] = f"{text}\n"
    return files


def _pci(gpus: GpuProfile | None) -> dict[str, str]:
    """The GPUs, and the few devices that every machine has: network and disk."""
    files: dict[str, str] = {}
    _device(files, "0000:00:01.3", "0x1d0f", "0xec20", "0x020000", -1)
    _device(files, "0000:00:04.0", "0x1d0f", "0x8061", "0x010802", -1)
    for place in gpus.places if gpus is not None else ():
        assert gpus is not None
        address = f"{place.domain:04x}:{place.bus:02x}:{place.device:02x}.0"
        _device(files, address, "0x10de", f"0x{gpus.model.pci_device >> 16:04x}", "0x030200", place.numa)
        subsystem = gpus.model.pci_subsystem
        files[f"sys/bus/pci/devices/{address}/subsystem_device"] = f"0x{subsystem >> 16:04x}\n"
    if gpus is not None and gpus.nvswitch:
        for number in range(4):
            _device(files, f"0000:{0x07 + number:02x}:00.0", "0x10de", "0x22a3", "0x068000", 0)
    return files


def _device(files: dict[str, str], address: str, vendor: str, device: str, kind: str, numa: int) -> None:
    base = f"sys/bus/pci/devices/{address}"
    files |= {
        f"{base}/vendor": f"{vendor}\n",
        f"{base}/device": f"{device}\n",
        f"{base}/class": f"{kind}\n",
        f"{base}/numa_node": f"{numa}\n",
    }


# -- writing ---------------------------------------------------------------------------------------------------------


def read_machine(directory: Path) -> NodeMachine:
    """Read the machine in a node's directory. Raises Terminal when there is none."""
    try:
        return msgspec.json.decode((directory / "machine.json").read_bytes(), type=NodeMachine)
    except (OSError, msgspec.DecodeError) as error:
        raise Terminal(
            f"no simulated machine: {error}", where=str(directory), cure="delete the directory, it is made again"
        ) from error


def build_node(directory: Path, name: str, machine: NodeMachine) -> NodeMachine:
    """Makes a node's directory, unless it stands; returns the machine that it is.

    Raises:
        Terminal: the tools or the driver's libraries are not built, or the directory cannot be written.
    """
    if (directory / "machine.json").is_file():
        return read_machine(directory)
    root = directory / "root"
    shutil.rmtree(root, ignore_errors=True)  # half-made, by a process that was killed
    write_tree(root, tree(machine, name))
    for directory_name in _DIRECTORIES:
        (root / directory_name).mkdir(parents=True, exist_ok=True)
    for placeholder in _PLACEHOLDERS:
        (root / "dev" / placeholder).touch()
    for link, target in _DEVICE_LINKS.items():
        (root / link).symlink_to(target)
    (root / "tmp").chmod(0o1777)
    install_programs(root, machine)
    for program in NVIDIA_RUNTIMES:
        (root / "usr/bin" / program).chmod(0o755)
    if machine.gpus:
        create_state(root / STATE_PATH, profile(machine.gpus), machine.driver, name)
        write_mirror(root, machine)
    if machine.preinstalled:
        install_driver(root, machine)
    (directory / "containers").mkdir(exist_ok=True)
    new = directory / "machine.json.new"
    new.write_bytes(msgspec.json.encode(machine))
    new.rename(directory / "machine.json")
    return machine


def write_tree(root: Path, files: dict[str, str]) -> None:
    """Writes `files` and the usual links below `root`."""
    root.mkdir(parents=True, exist_ok=True)
    for link, target in _LINKS.items():
        (root / link).parent.mkdir(parents=True, exist_ok=True)
        (root / link).symlink_to(target)
        ((root / link).parent / target).mkdir(parents=True, exist_ok=True)
    made = set()
    for name, text in files.items():
        path = root / name
        if path.parent not in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            made.add(path.parent)
        path.write_text(text, encoding="utf-8")
