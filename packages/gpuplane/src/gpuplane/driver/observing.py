"""Reading what a host has of a driver: the facts that `gpuplane.driver.decide` wants."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping

import msgspec

from gpuplane import names
from gpuplane.driver.decide import DriverFacts
from gpuplane.driver.released import RECOMMENDED, DriverTarget, Released, WantedDriver, choose
from gpuplane.driver.signing import KEY_PLACES, SECURE_BOOT, TRUSTED, SigningFacts, signing_facts
from gpuplane.driver.steps import PID_FILES, ROOT, UNLOAD_ORDER
from gpuplane.host import LIBRARY_DIRS, OWN_DRIVER_ROOTS, ChangesState, Host, load_state, read_os_release

COMPONENT = "driver"
OVERLAY = "gpuplane-driver"  # the name of our layer among the host's mounts
_NVIDIA, _DISPLAY, _BRIDGE = "0x10de", ("0x0300", "0x0302"), "0x0680"
_WRITTEN_TO = ("usr", "var", "etc", "opt", "lib", "var/lib", "var/cache", "usr/lib", "usr/local", "usr/src")


def observe(
    host: Host, *, wanted: WantedDriver = RECOMMENDED, may_install: bool = True, before: DriverFacts | None = None
) -> DriverFacts:
    """The facts of a host.

    Args:
        wanted: the driver to install where there is none.
        may_install: the administrator's word, passed through.
        before: facts of a moment ago, for what no step of ours changes.
    """
    state = load_state(host, COMPONENT)
    notes = state.notes if state is not None else {}
    loaded = _loaded(host)
    facts = _lasting(host, wanted, may_install) if before is None else before
    package = facts.package
    mounted, mounted_other = _mounted(host)
    daemons = _daemons(host)
    nouveau = _nouveau_users(host)
    return msgspec.structs.replace(
        facts,
        module=module_version(host),
        users=sum(module.users for module in loaded.values()),
        unloaded=tuple(module for module in package.modules if module.replace("-", "_") not in loaded),
        library=_library(host) if state is None else "",
        installed=_installed(host, state),
        begun=notes.get("begun", ""),
        broken=notes.get("busy", "") != "",
        mounted=mounted,
        mounted_other=mounted_other,
        built=_built(notes, facts.signing, loaded=bool(loaded)),
        loaded=tuple(module for module in UNLOAD_ORDER if module in loaded),
        daemons=daemons,
        daemons_missing=_missing(package, {name for name, _ in daemons}),
        nouveau=nouveau is not None,
        nouveau_users=nouveau or 0,
    )


def _lasting(host: Host, wanted: WantedDriver, may_install: bool) -> DriverFacts:
    """Return the facts that no step changes."""
    os_release = read_os_release(host)
    devices, switches = _devices(host)
    fits = DriverTarget(os_release=os_release, machine=platform.machine(), devices=devices, switches=switches)
    return DriverFacts(
        gpus=len(devices),
        package=choose(wanted, fits),
        may_install=may_install,
        kernel=host.read_text("proc/sys/kernel/osrelease") or "",
        file_systems=_file_systems(host),
        signing=_signing(host),
        processors=os.cpu_count() or 1,
        compiler=compiler_of(host),
    )


def _signing(host: Host) -> SigningFacts:
    place = next((place for place in KEY_PLACES if all(host.exists(path) for path in place)), None)
    certificate = host.read(place[1]) if place is not None else None
    return signing_facts(host.read(SECURE_BOOT), place, certificate, host.read(TRUSTED))


def _built(notes: Mapping[str, str], signing: SigningFacts, *, loaded: bool) -> tuple[str, ...]:
    """Return the kernels that have modules; none of them where they lack the signature that the kernel wants."""
    unsigned = signing.wanted is not None and notes.get("signed", "") != signing.fingerprint
    return () if unsigned and not loaded else tuple(notes.get("built", "").split())


def compiler_of(host: Host, kernel: str = "") -> str:
    """The compiler that built a kernel, of the running one without `kernel`: gcc-12, or gcc where it names no version.

    Debian and Ubuntu build kernels with a compiler that need not be the distribution's default.
    """
    config = host.read_text(f"boot/config-{kernel or host.read_text('proc/sys/kernel/osrelease')}") or ""
    text = re.search(r'(?m)^CONFIG_CC_VERSION_TEXT="(.*)"$', config)
    found = re.search(r"\bgcc-\d+\b", text[1] if text else "" if kernel else host.read_text("proc/version") or "")
    return found[0] if found else "gcc"


def _installed(host: Host, state: ChangesState | None) -> str | None:
    """The digest of what is there; "" when something of it is missing, None when we put nothing."""
    if state is None:
        return None
    if state.notes.get("begun") and not host.exists(names.DRIVER_STORE):
        return ""
    return state.notes.get("digest", "") if _complete(host, state) else ""


def _devices(host: Host) -> tuple[tuple[int, ...], int]:
    """PCI device ids of the GPUs, and how many NVSwitches there are."""
    base = "sys/bus/pci/devices"
    gpus: list[int] = []
    switches = 0
    for address in host.list(base):
        device = host.read_files(f"{base}/{address}", ("vendor", "class", "device"))
        if device.get("vendor") != _NVIDIA:
            continue
        if device.get("class", "")[:6] in _DISPLAY:
            text = device.get("device", "")
            gpus.append(int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,4}", text) else 0xFFFF)
        switches += device.get("class", "")[:6] == _BRIDGE
    return tuple(gpus), switches


def _library(host: Host) -> str:
    """The directory in which the host has NVML, "" for none."""
    places = (f"{root}/{path}".lstrip("/") for root in OWN_DRIVER_ROOTS for path in LIBRARY_DIRS)
    return next((path for path in places if host.exists(f"{path}/libnvidia-ml.so.1")), "")


def own_root(library: str) -> str:
    """Return the root of the host's own driver, as the host sees it, by the directory of its libraries."""
    return next((f"/{root}" for root in OWN_DRIVER_ROOTS if root and library.startswith(f"{root}/")), "/")


def _complete(host: Host, state: ChangesState) -> bool:
    """Return whether all that was installed is still there."""
    wanted: dict[str, set[str]] = {}
    for record in state.records:
        directory, _, name = record.path.rpartition("/")
        wanted.setdefault(directory, set()).add(name)
    return all(names_in <= set(host.list(directory)) for directory, names_in in wanted.items())


def _mounts(host: Host) -> list[tuple[str, str]]:
    """(device, place) of the host's mounts: those of its first process, for ours may be a pod's. Format: proc(5)."""
    lines = (host.read_text("proc/1/mounts") or "").splitlines()
    return [(words[0], words[1]) for words in map(str.split, lines) if len(words) > 2]


def _mounted(host: Host) -> tuple[bool, bool]:
    """Return whether gpuplane's driver root is mounted, and whether a foreign one is."""
    there = [device for device, place in _mounts(host) if place == ROOT]
    return OVERLAY in there, bool(there) and OVERLAY not in there


def _file_systems(host: Host) -> tuple[str, ...]:
    """Places below `/` with a file system of their own, of those that package managers write to; outer ones first."""
    places = {place.lstrip("/") for _, place in _mounts(host)}
    return tuple(sorted(places.intersection(_WRITTEN_TO)))


def _daemons(host: Host) -> tuple[tuple[str, int], ...]:
    """The driver's daemons that run, by their files of process ids."""
    running = []
    for name, path in PID_FILES.items():
        pid = host.read_text(path) or ""
        # A name is cut to 15 letters in there; the id of one that died may be another's by now.
        if pid.isdigit() and host.read_text(f"proc/{pid}/comm") == name[:15]:
            running.append((name, int(pid)))
    return tuple(running)


def _missing(package: Released, running: set[str]) -> tuple[str, ...]:
    wanted = ("nvidia-persistenced", *(("nv-fabricmanager",) if package.fabric else ()))
    return tuple(name for name in wanted if name not in running)


class Module(msgspec.Struct, frozen=True):
    """A loaded kernel module; `users` are those that are no modules themselves: open files, mappings."""

    users: int


def _loaded(host: Host) -> dict[str, Module]:
    """The driver's loaded modules, by the names that /proc/modules has for them (format: proc(5))."""
    found = {}
    for line in (host.read_text("proc/modules") or "").splitlines():
        name, _, references, dependents, *_ = [*line.split(), "", "", "", ""]
        if name in UNLOAD_ORDER:
            modules = 0 if dependents in ("", "-") else dependents.strip(",").count(",") + 1
            found[name] = Module(max(0, int(references) - modules) if references.isdigit() else 0)
    return found


def _nouveau_users(host: Host) -> int | None:
    """The number of users of the module nouveau; None where it is not loaded."""
    found = re.search(r"(?m)^nouveau \d+ (\d+) ", host.read_text("proc/modules") or "")
    return int(found[1]) if found else None


def module_version(host: Host) -> str:
    """The version of the loaded kernel module, "" when it is not loaded."""
    version = host.read_text("sys/module/nvidia/version")
    if version:
        return version
    said = re.search(r"Kernel Module\s+(\d+\.\d[\d.]*)", host.read_text("proc/driver/nvidia/version") or "")
    return said.group(1) if said else ""
