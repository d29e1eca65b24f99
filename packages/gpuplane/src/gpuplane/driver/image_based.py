"""Operating systems that are images: no package manager can compile or install a driver there.

Such a host is refused by its name, before anything is mounted or fetched, with the way to a driver that its maker
offers. A driver that came with the image is found as any driver of a host's own, so these systems are refused only
while they have none. Some of them name a distribution with packages as their relative (`ID_LIKE`), or have its `ID`:
so this table is asked first.

Sources: os-release(5) of each system; `OSTREE_VERSION` and `VARIANT_ID` are those of ostree's systems.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec


class ImageBasedSystem(msgspec.Struct, frozen=True):
    """A system by its name for people, and the cure that works there."""

    name: str
    cure: str


_OWN_PLUGIN: Final = "; the node then has a device plugin of its own: label it nvidia.com/gpu.deploy.operands=false"
_OPENSHIFT: Final = ImageBasedSystem(
    "Red Hat Enterprise Linux CoreOS",
    "a driver image made for the node's kernel: ClusterPolicy spec.driver.usePrecompiled: true with repository, image "
    "and version (a branch, as 570); the node pulls IMAGE:570-KERNEL-SYSTEM",
)
_COREOS: Final = ImageBasedSystem(
    "Fedora CoreOS", "boot an image that has the driver: `rpm-ostree install` of its packages, or a derived image"
)
_MICRO: Final = ImageBasedSystem(
    "SUSE's transactional system",
    "transactional-update -n pkg install nvidia-open-driver-G06-signed-kmp-default nvidia-compute-utils-G06; reboot",
)
_OSTREE: Final = ImageBasedSystem(
    "a system of ostree", "rpm-ostree install the packages of the driver, and reboot; or boot an image that has it"
)
BY_ID: Final = {
    "rhcos": _OPENSHIFT,
    "flatcar": ImageBasedSystem(
        "Flatcar", "echo nvidia-drivers-570-open >> /etc/flatcar/enabled-sysext.conf on the node; reboot"
    ),
    "bottlerocket": ImageBasedSystem(
        "Bottlerocket", f"boot its variant for NVIDIA, aws-k8s-VERSION-nvidia{_OWN_PLUGIN}"
    ),
    "talos": ImageBasedSystem(
        "Talos",
        "boot an image with the extensions siderolabs/nvidia-open-gpu-kernel-modules-lts and "
        "siderolabs/nvidia-container-toolkit-lts; nvidia, nvidia_uvm, nvidia_modeset in machine.kernel.modules",
    ),
    "cos": ImageBasedSystem(
        "Container-Optimized OS",
        "let GKE install the driver: gcloud container node-pools create --accelerator=...,gpu-driver-version=latest",
    ),
    "opensuse-microos": _MICRO,
    "sle-micro": _MICRO,
    "sl-micro": _MICRO,
    "sle-micro-rancher": _MICRO,
    "ubuntu-core": ImageBasedSystem("Ubuntu Core", "boot Ubuntu Server, or an image whose kernel snap has the driver"),
    "nixos": ImageBasedSystem(
        "NixOS Linux",
        'hardware.nvidia and services.xserver.videoDrivers = [ "nvidia" ] in its configuration; nixos-rebuild',
    ),
}
"""Systems by the `ID` of os-release."""


def image_based(os_release: Mapping[str, str]) -> ImageBasedSystem | None:
    """Return the image-based system that os-release names; None for a distribution with packages."""
    found = BY_ID.get(os_release.get("ID", ""))
    if found is not None:
        return found
    if os_release.get("VARIANT_ID") == "coreos":
        # Newer releases of OpenShift have the ID of the distribution that they are made of.
        return _COREOS if os_release.get("ID") == "fedora" else _OPENSHIFT
    return _OSTREE if os_release.get("OSTREE_VERSION") else None
