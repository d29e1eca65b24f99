"""From a machine's facts to node labels, spelled as node feature discovery spells them.

Pure. Which PCI devices get a label, and that only the vendor is in its name (`pci-10de.present`), follows the
configuration that GPU clusters run node feature discovery with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuplane.discovery.facts import Facts
from gpuplane.names import FEATURE_PREFIX

# PCI classes worth a label: network controllers, and VGA and 3D controllers.
_PCI_CLASSES = ("02", "0300", "0302")
# USB classes where accelerators are found: video, miscellaneous, application and vendor specific.
_USB_CLASSES = ("0e", "ef", "fe", "ff")
_SOURCES = ("cpu-", "kernel-", "memory-", "network-", "pci-", "storage-", "system-", "usb-")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def is_feature_label(label: str) -> bool:
    """Whether a label is of the kind made here."""
    return label.startswith(FEATURE_PREFIX) and label.removeprefix(FEATURE_PREFIX).startswith(_SOURCES)


def feature_labels(facts: Facts) -> dict[str, str]:
    """The labels of a machine. What cannot be a label (a version with forbidden characters) is left out."""
    return {
        FEATURE_PREFIX + name: value
        for name, value in sorted(_features(facts))
        if _NAME.fullmatch(name) and _NAME.fullmatch(value)
    }


def _features(facts: Facts) -> Iterator[tuple[str, str]]:
    yield from _cpu(facts)
    yield from _kernel(facts)
    if facts.numa_nodes > 1:
        yield "memory-numa", "true"
    if facts.swap:
        yield "memory-swap", "true"
    if facts.sriov_capable:
        yield "network-sriov.capable", "true"
    if facts.sriov_configured:
        yield "network-sriov.configured", "true"
    for device in facts.pci:
        if device.kind.startswith(_PCI_CLASSES):
            yield f"pci-{device.vendor}.present", "true"
            if device.sriov:
                yield f"pci-{device.vendor}.sriov.capable", "true"
    if facts.nonrotational_disk:
        yield "storage-nonrotationaldisk", "true"
    yield from _system(facts)
    for usb in facts.usb:
        if usb.kind in _USB_CLASSES:
            yield f"usb-{usb.kind}_{usb.vendor}_{usb.device}.present", "true"


def _cpu(facts: Facts) -> Iterator[tuple[str, str]]:
    for flag in facts.cpu_flags:
        yield f"cpu-cpuid.{flag}", "true"
    if facts.multithreading is not None:
        yield "cpu-hardware_multithreading", _boolean(facts.multithreading)
    for name, value in (("vendor_id", facts.cpu_vendor), ("family", facts.cpu_family), ("id", facts.cpu_model)):
        if value:
            yield f"cpu-model.{name}", value
    for name, value in facts.pstate.items():
        yield f"cpu-pstate.{name}", value
    if facts.cstate is not None:
        yield "cpu-cstate.enabled", _boolean(facts.cstate)


def _kernel(facts: Facts) -> Iterator[tuple[str, str]]:
    full = re.sub(r"[^-A-Za-z0-9_.]", "_", facts.kernel).strip("-_.")
    if full:
        yield "kernel-version.full", full
    version = re.fullmatch(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:-.*)?", full)
    if version:
        for name, value in zip(("major", "minor", "revision"), version.groups(), strict=True):
            if value is not None:
                yield f"kernel-version.{name}", value
    for option, value in facts.kernel_config.items():
        yield f"kernel-config.{option}", value
    if facts.selinux:
        yield "kernel-selinux.enabled", "true"


def _system(facts: Facts) -> Iterator[tuple[str, str]]:
    for key in ("ID", "VERSION_ID"):
        if key in facts.os_release:
            yield f"system-os_release.{key}", facts.os_release[key]
    version = re.fullmatch(r"(\d+)(?:\.(\d+))?(?:\..*)?", facts.os_release.get("VERSION_ID", ""))
    if version:
        for name, value in zip(("major", "minor"), version.groups(), strict=True):
            if value is not None:
                yield f"system-os_release.VERSION_ID.{name}", value


def _boolean(value: bool) -> str:
    return "true" if value else "false"
