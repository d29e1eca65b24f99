"""What a machine is, read from its /proc, /sys and /etc: the observing half of node feature discovery.

Everything is read below a host root, nothing is asked of the running kernel, so that a simulated machine is a
directory. A source that is absent or has no answer yields an empty fact, never an error: a machine without USB is a
machine.
"""

from __future__ import annotations

import gzip
import logging
import re
import zlib

import msgspec

from gpuplane.discovery import cpuid
from gpuplane.host import Host, HostError, read_os_release

log = logging.getLogger("gpuplane.discovery")

_CPUINFO_BYTES = 8192  # the first processor's paragraph; all of them are 400 kB on large machines
_KERNEL_OPTIONS = ("NO_HZ", "NO_HZ_IDLE", "NO_HZ_FULL", "PREEMPT")
_VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "HygonGenuine": "Hygon", "CentaurHauls": "VIA"}


class PciDevice(msgspec.Struct, frozen=True):
    """`vendor` and `device` are four hex digits, `kind` is class and subclass ("0302"). `sriov`: it can be split."""

    kind: str
    vendor: str
    device: str = ""
    sriov: bool = False


class UsbDevice(msgspec.Struct, frozen=True):
    kind: str
    vendor: str
    device: str


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """A machine's features. Strings are as the kernel writes them, flags as labels name them."""

    kernel: str = ""
    kernel_config: dict[str, str] = {}
    selinux: bool = False
    cpu_vendor: str = ""
    cpu_family: str = ""
    cpu_model: str = ""
    cpu_flags: frozenset[str] = frozenset()
    multithreading: bool | None = None
    pstate: dict[str, str] = {}
    cstate: bool | None = None
    numa_nodes: int = 0
    swap: bool = False
    sriov_capable: bool = False
    sriov_configured: bool = False
    nonrotational_disk: bool = False
    os_release: dict[str, str] = {}
    pci: frozenset[PciDevice] = frozenset()
    usb: frozenset[UsbDevice] = frozenset()


def observe(host: Host, before: Facts | None = None) -> Facts:
    """The machine's facts now. What cannot change while its kernel runs is taken over from `before`."""
    kernel = _text(host, "proc/sys/kernel/osrelease") or ""
    known = before is not None and before.kernel == kernel
    cpu = _cpuinfo(host)
    return Facts(
        kernel=kernel,
        kernel_config=before.kernel_config if known and before else _kernel_config(host, kernel),
        selinux=(_text(host, "sys/fs/selinux/enforce") or "").startswith("1"),
        cpu_vendor=_VENDORS.get(cpu.get("vendor_id", ""), cpu.get("vendor_id", "")),
        cpu_family=cpu.get("cpu family", ""),
        cpu_model=cpu.get("model", ""),
        cpu_flags=cpuid.label_names(cpu.get("flags", "").split())
        or cpuid.label_names(cpu.get("Features", "").split(), arm=True),
        multithreading=_multithreading(host, cpu),
        pstate=_pstate(host),
        cstate=_cstate(host),
        numa_nodes=sum(1 for name in host.list("sys/devices/system/node") if re.fullmatch(r"node\d+", name)),
        swap=len((_text(host, "proc/swaps") or "").splitlines()) > 1,
        sriov_capable=_any_vfs(host, "sriov_totalvfs"),
        sriov_configured=_any_vfs(host, "sriov_numvfs"),
        nonrotational_disk=any(
            _text(host, f"sys/block/{name}/queue/rotational") == "0" for name in host.list("sys/block")
        ),
        os_release=read_os_release(host),
        pci=_pci(host),
        usb=_usb(host),
    )


def _text(host: Host, path: str) -> str | None:
    """The text of a file; None also where the kernel has no answer to give in it (many in sysfs, EIO and the like)."""
    try:
        return host.read_text(path)
    except HostError as error:
        log.debug("left out: %s", error)
        return None


def _cpuinfo(host: Host) -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo."""
    text = (host.read("proc/cpuinfo", limit=_CPUINFO_BYTES) or b"").decode(errors="replace")
    found = {}
    for line in text.split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        found[key.strip()] = value.strip()
    return found


def _kernel_config(host: Host, kernel: str) -> dict[str, str]:
    """The few options that become labels, from the first place that has the configuration; m counts as y."""
    places = (
        "proc/config.gz",
        f"usr/src/linux-{kernel}/.config",
        f"usr/lib/modules/{kernel}/config",
        f"usr/lib/ostree-boot/config-{kernel}",
        f"usr/lib/kernel/config-{kernel}",
        f"usr/src/linux-headers-{kernel}/.config",
        f"lib/modules/{kernel}/build/.config",
        f"boot/config-{kernel}",
    )
    data = next((data for place in places if (data := host.read(place)) is not None), b"")
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            return {}
    wanted = "|".join(_KERNEL_OPTIONS).encode()
    found = {}
    for name, value in re.findall(rb"^CONFIG_(" + wanted + rb")=(.*)$", data, re.MULTILINE):
        text = value.decode(errors="replace").strip().strip('"')
        found[name.decode()] = "true" if text in ("y", "m") else text
    return found


def _multithreading(host: Host, cpu: dict[str, str]) -> bool | None:
    """Whether a core runs several threads: from cpuinfo where it says, else from sysfs."""
    if cpu.get("siblings", "").isdigit() and cpu.get("cpu cores", "").isdigit():
        return int(cpu["siblings"]) > int(cpu["cpu cores"])
    known = False
    for name in host.list("sys/devices/system/cpu"):
        if re.fullmatch(r"cpu\d+", name):
            siblings = _text(host, f"sys/devices/system/cpu/{name}/topology/thread_siblings_list")
            known |= siblings is not None
            if siblings and re.search(r"[,-]", siblings):
                return True
    return False if known else None


def _pstate(host: Host) -> dict[str, str]:
    """intel_pstate's status, turbo, and the governor if all policies have the same."""
    seen = host.read_files("sys/devices/system/cpu/intel_pstate", ("status", "no_turbo"))
    status = seen.get("status", "off")
    if status == "off":
        return {}
    found = {"status": status}
    if "no_turbo" in seen:
        found["turbo"] = "true" if seen["no_turbo"].startswith("0") else "false"
    if status == "active":
        base = "sys/devices/system/cpu/cpufreq"
        policies = [host.read_files(f"{base}/{p}", ("affected_cpus", "scaling_governor")) for p in host.list(base)]
        governors = {p["scaling_governor"] for p in policies if p.get("affected_cpus") and "scaling_governor" in p}
        if len(governors) == 1:
            found["scaling_governor"] = governors.pop()
    return found


def _cstate(host: Host) -> bool | None:
    if _text(host, "sys/devices/system/cpu/cpuidle/current_driver") != "intel_idle":
        return None
    deepest = _text(host, "sys/module/intel_idle/parameters/max_cstate") or ""
    return int(deepest) > 0 if deepest.isdigit() else None


def _any_vfs(host: Host, name: str) -> bool:
    for interface in host.list("sys/class/net"):
        count = host.read_files(f"sys/class/net/{interface}/device", (name,)).get(name, "")
        if count.isdigit() and int(count) > 0:
            return True
    return False


def _pci(host: Host) -> frozenset[PciDevice]:
    base = "sys/bus/pci/devices"
    found: set[PciDevice] = set()
    for address in host.list(base):
        seen = host.read_files(f"{base}/{address}", ("class", "vendor", "device", "sriov_totalvfs"))
        if "class" in seen and "vendor" in seen:
            kind, vendor, device = (seen.get(k, "").removeprefix("0x") for k in ("class", "vendor", "device"))
            found.add(PciDevice(kind[:4], vendor, device, "sriov_totalvfs" in seen))
    return frozenset(found)


def _usb(host: Host) -> frozenset[UsbDevice]:
    """USB devices by class; one whose class is 00 says it at its interfaces instead."""
    base = "sys/bus/usb/devices"
    found: set[UsbDevice] = set()
    for name in host.list(base):
        seen = host.read_files(f"{base}/{name}", ("bDeviceClass", "idVendor", "idProduct"))
        if "idProduct" not in seen:
            continue
        kinds = [seen.get("bDeviceClass", "")]
        if kinds == ["00"]:
            inside = [_text(host, f"{base}/{name}/{part}/bInterfaceClass") for part in host.list(f"{base}/{name}")]
            kinds = [kind for kind in inside if kind]
        found.update(UsbDevice(kind, seen.get("idVendor", ""), seen["idProduct"]) for kind in kinds)
    return frozenset(found)
