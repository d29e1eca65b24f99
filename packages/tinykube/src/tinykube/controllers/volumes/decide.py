"""Decisions about claims and volumes, on the facts of both. Pure.

Source: pkg/controller/volume/persistentvolume of Kubernetes 1.36, and its hostPath plugin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from kubekit.scheduling.volumes.facts import ClaimInfo, StorageClassInfo, VolumeInfo

Object = Mapping[str, Any]
PENDING: Final = "Pending"
AVAILABLE: Final = "Available"
BOUND: Final = "Bound"
RELEASED: Final = "Released"
FAILED: Final = "Failed"
LOST: Final = "Lost"
EXTERNAL_EXPANDING: Final = ("ExternalExpanding", "waiting for an external controller to expand this PVC", "Normal")
_DELETED_PATHS: Final = re.compile("/tmp/.+")


class ClaimDecision(msgspec.Struct, frozen=True):
    """Bind the claim to `volume`, or give it a phase; `event` is reason, message and type.

    `provisioner`: of the driver that shall make a volume.
    """

    volume: str = ""
    phase: str = PENDING
    event: tuple[str, str, str] | None = None
    provisioner: str = ""


class VolumeDecision(msgspec.Struct, frozen=True):
    """The phase of a volume; `unbind` takes its claim out first, `look_at_claim` leaves the next step to the claim."""

    phase: str
    unbind: bool = False
    look_at_claim: bool = False


class ReclaimDecision(msgspec.Struct, frozen=True):
    """Delete the volume's object, or say why that is not possible."""

    delete: bool = False
    problem: str = ""
    reason: str = "VolumeFailedDelete"


# -- claims ------------------------------------------------------------------------------------------------------------


def decide_claim(
    claim: ClaimInfo, volumes: Mapping[str, VolumeInfo], storage: StorageClassInfo | None, unplaced: str = ""
) -> ClaimDecision:
    """
    Args:
        volumes: all volumes by name.
        storage: the claim's class, None where there is none of this name.
        unplaced: name of a pod that uses the claim and has no node.
    """
    if claim.bound:
        return _decide_bound(claim, volumes.get(claim.volume))
    if claim.volume:
        return _decide_named(claim, volumes.get(claim.volume))
    waits = storage is not None and storage.waits and claim.selected_node is None
    volume = best_volume(claim, volumes.values(), waits=waits)
    if volume is not None:
        return ClaimDecision(volume.name, BOUND)
    if waits:
        if unplaced:
            text = f"waiting for pod {unplaced} to be scheduled"
            return ClaimDecision(event=("WaitForPodScheduled", text, "Normal"))
        text = "waiting for first consumer to be created before binding"
        return ClaimDecision(event=("WaitForFirstConsumer", text, "Normal"))
    return _ask_for_volume(claim, storage)


def _ask_for_volume(claim: ClaimInfo, storage: StorageClassInfo | None) -> ClaimDecision:
    if not claim.storage_class:
        text = "no persistent volumes available for this claim and no storage class is set"
        return ClaimDecision(event=("FailedBinding", text, "Normal"))
    if storage is None:
        text = f'storageclass.storage.k8s.io "{claim.storage_class}" not found'
        return ClaimDecision(event=("ProvisioningFailed", text, "Warning"))
    if storage.provisioner.startswith("kubernetes.io/"):
        text = f"no volume plugin matched name: {storage.provisioner}"
        return ClaimDecision(event=("ProvisioningFailed", text, "Warning"))
    text = (
        f"Waiting for a volume to be created either by the external provisioner '{storage.provisioner}' or manually by "
        "the system administrator. If volume creation is delayed, please verify that the provisioner is running and "
        "correctly registered."
    )
    return ClaimDecision(event=("ExternalProvisioning", text, "Normal"), provisioner=storage.provisioner)


def _decide_named(claim: ClaimInfo, volume: VolumeInfo | None) -> ClaimDecision:
    if volume is None:
        return ClaimDecision()
    if volume.claim is None:
        if mismatch := _mismatch(claim, volume):
            text = f'Cannot bind to requested volume "{volume.name}": {mismatch}'
            return ClaimDecision(event=("VolumeMismatch", text, "Warning"))
        return ClaimDecision(volume.name, BOUND)
    if volume.claim.names(claim):
        return ClaimDecision(volume.name, BOUND)
    text = f'volume "{volume.name}" already bound to a different claim.'
    return ClaimDecision(event=("FailedBinding", text, "Warning"))


def _decide_bound(claim: ClaimInfo, volume: VolumeInfo | None) -> ClaimDecision:
    if volume is None:
        text = "Bound claim has lost its PersistentVolume. Data on the volume is lost!"
        return ClaimDecision(phase=LOST, event=("ClaimLost", text, "Warning"))
    if volume.claim is not None and volume.claim.uid and not volume.claim.names(claim):
        text = "Two claims are bound to the same volume, this one is bound incorrectly"
        return ClaimDecision(phase=LOST, event=("ClaimMisbound", text, "Warning"))
    return ClaimDecision(volume.name, BOUND)


def _mismatch(claim: ClaimInfo, volume: VolumeInfo) -> str:
    if volume.size_bytes < claim.size_bytes:
        return "requested PV is too small"
    if volume.storage_class != claim.storage_class:
        return "storageClassName does not match"
    if volume.attributes_class != claim.attributes_class:
        return "VolumeAttributesClassName does not match"
    if volume.block != claim.block:
        return "incompatible volumeMode"
    if not set(claim.access_modes) <= set(volume.access_modes):
        return "incompatible accessMode"
    return ""


def best_volume(claim: ClaimInfo, volumes: Iterable[VolumeInfo], *, waits: bool) -> VolumeInfo | None:
    """Return the volume that is reserved for the claim, else the smallest of those with the fewest access modes.

    Different from the scheduler's choice, which knows the node and looks within a class.

    Args:
        waits: whether the scheduler chooses, so that only a reserved volume counts.
    """
    best: VolumeInfo | None = None
    for volume in volumes:
        if volume.deleting or volume.size_bytes < claim.size_bytes or volume.block != claim.block:
            continue
        if volume.attributes_class != claim.attributes_class:
            continue
        if not set(claim.access_modes) <= set(volume.access_modes):
            continue
        if volume.claim is not None:
            if volume.claim.names(claim):
                return volume
            continue
        if waits or not volume.available or volume.storage_class != claim.storage_class:
            continue
        if claim.selector is not None and not claim.selector.matches(volume.labels):
            continue
        if best is None or _rank(volume) < _rank(best):
            best = volume
    return best


def _rank(volume: VolumeInfo) -> tuple[int, int, str]:
    return len(volume.access_modes), volume.size_bytes, volume.name


# -- volumes -----------------------------------------------------------------------------------------------------------


def decide_volume(volume: VolumeInfo, phase: str, claim: ClaimInfo | None) -> VolumeDecision:
    """
    Args:
        phase: of the volume now.
        claim: the one with the name and namespace of the volume's claimRef.
    """
    if volume.claim is None or not volume.claim.uid:
        return VolumeDecision(AVAILABLE)
    if claim is None or claim.uid != volume.claim.uid:
        return VolumeDecision(phase if phase == FAILED else RELEASED)
    if not claim.volume:
        return VolumeDecision(phase, look_at_claim=True)
    if claim.volume == volume.name:
        return VolumeDecision(BOUND)
    return VolumeDecision(AVAILABLE, unbind=True)


def decide_reclaim(name: str, spec: Object) -> ReclaimDecision:
    """Decide about a volume whose claim is gone. Files on nodes are never touched."""
    if spec.get("persistentVolumeReclaimPolicy") == "Recycle":
        text = "No recycler plugin found for the volume!"
        if spec.get("hostPath") is not None or spec.get("nfs") is not None:
            text = "Recycle failed: the embedded cluster runs no recycler pods: remove its files, and make it again"
        return ReclaimDecision(problem=text, reason="VolumeFailedRecycle")
    if spec.get("persistentVolumeReclaimPolicy") != "Delete":
        return ReclaimDecision()
    host_path = spec.get("hostPath")
    if host_path is None:
        text = "no deletable volume plugin matched"
        return ReclaimDecision(problem=f'error getting deleter volume plugin for volume "{name}": {text}')
    if not _DELETED_PATHS.match(host_path["path"]):
        return ReclaimDecision(
            problem=f"host_path deleter only supports /tmp/.+ but received provided {host_path['path']}"
        )
    return ReclaimDecision(delete=True)
