"""The size of the disk on which pods of a class write, as the class declares it. Pure.

Source: the choice of Karpenter's provider for AWS: the volume that is marked as root volume, else that of the device
which the images of the family use for pods, else 20 GiB. With `instanceStorePolicy: RAID0` it is the local NVMe disks
of an instance that has some, as one disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kubekit.api.quantity import parse_quantity
from kubekit.errors import InvalidInput

DEFAULT_BYTES: Final = 20 << 30
_DEVICE: Final = "/dev/xvda"
_DEVICES: Final = {"bottlerocket": "/dev/xvdb"}  # its system is on a disk of its own
_CUSTOM: Final = "custom"


def disk_of_class(spec: Mapping[str, Any]) -> int:
    """Return the bytes of the disk of a class of any kind, or of a Provisioner's `provider`; 0 for an unknown size.

    Unknown is the disk of a launch template that the class names, and that of a custom image. A size that cannot be
    read is unknown too: the class has its own finding for it.
    """
    if spec.get("launchTemplate"):
        return 0
    try:
        family = _family(spec)
        found = spec.get("blockDeviceMappings") or ()
        chosen = next((one for one in found if one.get("rootVolume")), None)
        if chosen is None and family == _CUSTOM:
            chosen = found[-1] if found else None
        elif chosen is None:
            device = _DEVICES.get(family, _DEVICE)
            chosen = next((one for one in found if one.get("deviceName") == device), None)
        if chosen is None:
            return 0 if family == _CUSTOM else DEFAULT_BYTES
        size = (chosen.get("ebs") or {}).get("volumeSize")
        return 0 if size is None else max(0, int(parse_quantity(str(size))))
    except (InvalidInput, TypeError, AttributeError, KeyError, IndexError):
        return 0


def joins_local_disks(spec: Mapping[str, Any]) -> bool:
    """Return whether pods write on the local disks of an instance, joined to one, where it has some."""
    return spec.get("instanceStorePolicy") == "RAID0"


def _family(spec: Mapping[str, Any]) -> str:
    """Return the family of the images in lower case; AL2 is that of the old kinds by default."""
    terms = spec.get("amiSelectorTerms")
    alias = next((str(term["alias"]) for term in terms or () if term.get("alias")), "")
    family = spec.get("amiFamily") or alias.partition("@")[0]
    return str(family or (_CUSTOM if terms else "AL2")).lower()
