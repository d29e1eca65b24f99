"""From a machine's features to node labels, spelled as node feature discovery spells them.

Pure. Which PCI devices get a label, and that only the vendor is in its name (`pci-10de.present`), follows the
configuration that GPU clusters run node feature discovery with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpuplane.discovery.cpuid import UNLABELLED
from gpuplane.discovery.features import Features
from gpuplane.names import FEATURE_PREFIX

# PCI classes worth a label: network controllers, and VGA and 3D controllers.
_PCI_CLASSES: Final = ("02", "0300", "0302")
# USB classes where accelerators are found: video, miscellaneous, application and vendor specific.
_USB_CLASSES: Final = ("0e", "ef", "fe", "ff")
_SOURCES: Final = ("cpu-", "kernel-", "memory-", "network-", "pci-", "storage-", "system-", "usb-", "custom-rdma.")
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_KERNEL_OPTIONS: Final = ("NO_HZ", "NO_HZ_IDLE", "NO_HZ_FULL", "PREEMPT")
# Amounts are for rules (extended resources), not for labels.
_AMOUNTS: Final = frozenset(("tdx.total_keys", "sgx.epc", "sev.encrypted_state_ids", "sev.asids"))


def is_feature_label(label: str) -> bool:
    """Return whether a label is of the kind made here."""
    return label.startswith(FEATURE_PREFIX) and label.removeprefix(FEATURE_PREFIX).startswith(_SOURCES)


def feature_labels(features: Features) -> dict[str, str]:
    """The labels of a machine. A value that cannot be a label (a version with forbidden characters) is left out."""
    return {
        FEATURE_PREFIX + name: value
        for name, value in sorted(_labels(features))
        if _NAME.fullmatch(name) and _NAME.fullmatch(value)
    }


def _labels(features: Features) -> Iterator[tuple[str, str]]:
    yield from _cpu(features)
    yield from _kernel(features)
    yield from _memory(features)
    for interface in features.instances.get("network.device", ()):
        for name, label in (("sriov_totalvfs", "capable"), ("sriov_numvfs", "configured")):
            if interface.get(name, "").isdigit() and int(interface[name]) > 0:
                yield f"network-sriov.{label}", "true"
    yield from _devices(features)
    release = features.attributes.get("system.osrelease", {})
    for key in ("ID", "VERSION_ID", "VERSION_ID.major", "VERSION_ID.minor"):
        if key in release:
            yield f"system-os_release.{key}", release[key]


def _cpu(features: Features) -> Iterator[tuple[str, str]]:
    for flag in features.flags.get("cpu.cpuid", frozenset()) - UNLABELLED:
        yield f"cpu-cpuid.{flag}", "true"
    for feature, prefix in (
        ("cpu.model", "cpu-model."),
        ("cpu.pstate", "cpu-pstate."),
        ("cpu.cstate", "cpu-cstate."),
        ("cpu.sst", "cpu-power.sst_"),
        ("cpu.coprocessor", "cpu-coprocessor."),
    ):
        for name, value in features.attributes.get(feature, {}).items():
            yield prefix + name, value
    for name, value in features.attributes.get("cpu.security", {}).items():
        if name not in _AMOUNTS:
            yield f"cpu-security.{name}", value
    threads = features.attributes.get("cpu.topology", {}).get("hardware_multithreading")
    if threads is not None:
        yield "cpu-hardware_multithreading", threads


def _kernel(features: Features) -> Iterator[tuple[str, str]]:
    for name, value in features.attributes.get("kernel.version", {}).items():
        yield f"kernel-version.{name}", value
    config = features.attributes.get("kernel.config", {})
    for option in _KERNEL_OPTIONS:
        if option in config:
            yield f"kernel-config.{option}", "true" if config[option] in ("y", "m") else config[option]
    if features.attributes.get("kernel.selinux", {}).get("enabled") == "true":
        yield "kernel-selinux.enabled", "true"


def _memory(features: Features) -> Iterator[tuple[str, str]]:
    if features.attributes.get("memory.numa", {}).get("is_numa") == "true":
        yield "memory-numa", "true"
    if features.attributes.get("memory.swap", {}).get("enabled") == "true":
        yield "memory-swap", "true"
    nvdimms = features.instances.get("memory.nv", ())
    if nvdimms:
        yield "memory-nv.present", "true"
    if any(nvdimm.get("devtype") == "nd_dax" for nvdimm in nvdimms):
        yield "memory-nv.dax", "true"


def _devices(features: Features) -> Iterator[tuple[str, str]]:
    for device in features.instances.get("pci.device", ()):
        if device["class"].startswith(_PCI_CLASSES):
            yield f"pci-{device['vendor']}.present", "true"
            if "sriov_totalvfs" in device:
                yield f"pci-{device['vendor']}.sriov.capable", "true"
    if any(disk.get("rotational") == "0" for disk in features.instances.get("storage.block", ())):
        yield "storage-nonrotationaldisk", "true"
    for device in features.instances.get("usb.device", ()):
        if device.get("class") in _USB_CLASSES and "vendor" in device:
            yield f"usb-{device['class']}_{device['vendor']}_{device['device']}.present", "true"
