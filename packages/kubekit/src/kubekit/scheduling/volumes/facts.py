"""Claims, volumes and their kin as the scheduler sees them, compiled from their objects once.

Sizes are bytes. Pure; `compile_*` raise InvalidInput for an invalid quantity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from kubekit.api.quantity import whole
from kubekit.scheduling.selectors import NodeTerm, Requirement, Selector, compile_node_terms, compile_selector
from kubekit.scheduling.volumes.drivers import attached_by, attached_of_provisioner

WAITS: Final = "WaitForFirstConsumer"
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
_BETA_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
ZONE_LABELS: Final = (
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
)
_ZONES_DELIMITER: Final = "__"


class Disk(msgspec.Struct, frozen=True):
    """A disk that a pod names itself, of a kind that nodes cannot share freely.

    `hosts` are Ceph's monitors, of which one in common suffices. `exclusive`: also two readers conflict.
    """

    kind: str
    identity: tuple[str, ...]
    hosts: frozenset[str] = frozenset()
    read_only: bool = False
    exclusive: bool = False

    def conflicts(self, other: Disk) -> bool:
        """Return whether two pods of one node cannot have both."""
        if self.kind != other.kind or self.identity != other.identity:
            return False
        if self.hosts and not self.hosts & other.hosts:
            return False
        return self.exclusive or not (self.read_only and other.read_only)


class PodVolume(msgspec.Struct, frozen=True):
    """A volume of a pod that restricts its node; others are left out.

    `claim` is the name of its claim, `ephemeral`: the pod's template makes the claim. `attached` is driver and handle.
    """

    claim: str = ""
    ephemeral: bool = False
    disk: Disk | None = None
    attached: tuple[str, str] = ("", "")


class ClaimInfo(msgspec.Struct, frozen=True):
    """A PersistentVolumeClaim. `bound`: the controller has completed the binding. `owner`: uid of its controller."""

    namespace: str
    name: str
    uid: str = ""
    resource_version: str = ""
    storage_class: str = ""
    volume: str = ""
    bound: bool = False
    selected_node: str | None = None
    lost: bool = False
    deleting: bool = False
    owner: str = ""
    access_modes: tuple[str, ...] = ()
    size_bytes: int = 0
    sized: bool = False
    selector: Selector | None = None
    block: bool = False
    attributes_class: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class ClaimReference(msgspec.Struct, frozen=True):
    """`spec.claimRef` of a volume. `uid` is empty where an administrator reserved the volume by hand."""

    namespace: str
    name: str
    uid: str = ""

    def names(self, claim: ClaimInfo) -> bool:
        """Return whether the volume is reserved for the claim."""
        return (self.namespace, self.name) == (claim.namespace, claim.name) and self.uid in ("", claim.uid)


class VolumeInfo(msgspec.Struct, frozen=True):
    """A PersistentVolume. `terms`: alternatives of which a node must satisfy one; None admits every node.

    `zones`: label of a zone or region -> its allowed values. `attached`: driver and handle. `csi`: of a CSI driver by
    itself, not one that Kubernetes moved to a driver.
    """

    name: str
    resource_version: str = ""
    labels: dict[str, str] = {}
    storage_class: str = ""
    claim: ClaimReference | None = None
    available: bool = False
    deleting: bool = False
    access_modes: tuple[str, ...] = ()
    size_bytes: int = 0
    block: bool = False
    attributes_class: str = ""
    terms: tuple[NodeTerm, ...] | None = None
    zones: tuple[tuple[str, frozenset[str]], ...] = ()
    attached: tuple[str, str] = ("", "")
    csi: bool = False

    def admits(self, labels: Mapping[str, str]) -> bool:
        """Return whether the volume's node affinity matches the labels of a node."""
        return self.terms is None or any(term.matches("", labels) for term in self.terms)


class StorageClassInfo(msgspec.Struct, frozen=True):
    """A StorageClass. `waits`: volumes are bound when their first pod is. `topologies`: where volumes can be made."""

    name: str
    provisioner: str = ""
    waits: bool = False
    topologies: tuple[NodeTerm, ...] | None = None
    driver: str = ""


class StorageCapacityInfo(msgspec.Struct, frozen=True):
    """A CSIStorageCapacity: the largest volume of a class that can be made for the selected nodes; None is unknown."""

    key: str
    storage_class: str
    nodes: Selector | None
    most_bytes: int | None


class AttachmentInfo(msgspec.Struct, frozen=True):
    """A VolumeAttachment: a volume that a driver has attached to a node."""

    name: str
    node: str
    driver: str
    volume: str


# -- pods --------------------------------------------------------------------------------------------------------------


def compile_volumes(pod: str, spec: Mapping[str, Any]) -> tuple[PodVolume, ...]:
    """Return the volumes of a pod that restrict its node."""
    return tuple(read for one in spec.get("volumes") or () if (read := _pod_volume(pod, one)) is not None)


def _pod_volume(pod: str, volume: Mapping[str, Any]) -> PodVolume | None:
    if (claim := volume.get("persistentVolumeClaim")) is not None:
        return PodVolume(claim.get("claimName") or "")
    if volume.get("ephemeral") is not None:
        return PodVolume(f"{pod}-{volume.get('name', '')}", ephemeral=True)
    if volume.get("csi") is not None:
        return None  # made by the node itself for the pod's lifetime
    disk, attached = _disk(volume), attached_by(volume)
    return PodVolume(disk=disk, attached=attached) if disk is not None or attached[1] else None


def _disk(volume: Mapping[str, Any]) -> Disk | None:
    if (gce := volume.get("gcePersistentDisk")) is not None:
        return Disk("gce", (gce.get("pdName", ""),), read_only=bool(gce.get("readOnly")))
    if (ebs := volume.get("awsElasticBlockStore")) is not None:
        return Disk("ebs", (ebs.get("volumeID", ""),), exclusive=True)
    if (iscsi := volume.get("iscsi")) is not None:
        return Disk("iscsi", (iscsi.get("iqn", ""),), read_only=bool(iscsi.get("readOnly")))
    if (rbd := volume.get("rbd")) is not None:
        image = rbd.get("pool") or "rbd", rbd.get("image", "")
        return Disk("rbd", image, frozenset(rbd.get("monitors") or ()), bool(rbd.get("readOnly")))
    return None


# -- claims, volumes, classes ------------------------------------------------------------------------------------------


def compile_claim(obj: Mapping[str, Any]) -> ClaimInfo:
    """Read a PersistentVolumeClaim."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    annotations = meta.get("annotations") or {}
    owners = meta.get("ownerReferences") or ()
    requested = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    return ClaimInfo(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta.get("uid", ""),
        resource_version=meta.get("resourceVersion", ""),
        storage_class=annotations.get(_BETA_CLASS, spec.get("storageClassName") or ""),
        volume=spec.get("volumeName") or "",
        bound=bool(spec.get("volumeName")) and BIND_COMPLETED in annotations,
        selected_node=annotations.get(SELECTED_NODE),
        lost=status.get("phase") == "Lost",
        deleting=bool(meta.get("deletionTimestamp")),
        owner=next((one.get("uid", "") for one in owners if one.get("controller")), ""),
        access_modes=tuple(spec.get("accessModes") or ()),
        size_bytes=whole(requested) if requested is not None else 0,
        sized=requested is not None,
        selector=compile_selector(spec.get("selector")),
        block=spec.get("volumeMode") == "Block",
        attributes_class=spec.get("volumeAttributesClassName") or "",
    )


def compile_volume(obj: Mapping[str, Any]) -> VolumeInfo:
    """Read a PersistentVolume."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    annotations, labels = meta.get("annotations") or {}, meta.get("labels") or {}
    claim = spec.get("claimRef")
    return VolumeInfo(
        name=meta["name"],
        resource_version=meta.get("resourceVersion", ""),
        labels=labels,
        storage_class=annotations.get(_BETA_CLASS, spec.get("storageClassName") or ""),
        claim=ClaimReference(claim.get("namespace", ""), claim.get("name", ""), claim.get("uid", ""))
        if claim
        else None,
        available=status.get("phase") == "Available",
        deleting=bool(meta.get("deletionTimestamp")),
        access_modes=tuple(spec.get("accessModes") or ()),
        size_bytes=whole((spec.get("capacity") or {}).get("storage") or 0),
        block=spec.get("volumeMode") == "Block",
        attributes_class=spec.get("volumeAttributesClassName") or "",
        terms=compile_node_terms((spec.get("nodeAffinity") or {}).get("required")),
        zones=_zones(labels),
        attached=attached_by(spec),
        csi=spec.get("csi") is not None,
    )


def _zones(labels: Mapping[str, str]) -> tuple[tuple[str, frozenset[str]], ...]:
    found = []
    for key in ZONE_LABELS:
        values = [one.strip() for one in labels[key].split(_ZONES_DELIMITER)] if key in labels else []
        if values and all(values):  # a label that cannot be read is ignored
            found.append((key, frozenset(values)))
    return tuple(found)


def compile_class(obj: Mapping[str, Any]) -> StorageClassInfo:
    """Read a StorageClass."""
    allowed = obj.get("allowedTopologies") or ()
    provisioner = obj.get("provisioner") or ""
    return StorageClassInfo(
        name=obj["metadata"]["name"],
        provisioner=provisioner,
        waits=obj.get("volumeBindingMode") == WAITS,
        topologies=tuple(map(_topology, allowed)) if allowed else None,
        driver=attached_of_provisioner(provisioner),
    )


def _topology(term: Mapping[str, Any]) -> NodeTerm:
    parts = term.get("matchLabelExpressions") or ()
    return NodeTerm(tuple(Requirement(one["key"], "In", tuple(one.get("values") or ())) for one in parts))


def compile_node_limits(obj: Mapping[str, Any]) -> dict[str, int]:
    """Return the most volumes that a node attaches, by driver, as its CSINode states it."""
    drivers = (obj.get("spec") or {}).get("drivers") or ()
    counts = ((one["name"], (one.get("allocatable") or {}).get("count")) for one in drivers)
    return {name: count for name, count in counts if count is not None}


def tracks_capacity(obj: Mapping[str, Any]) -> bool:
    """Return whether a CSIDriver publishes the storage that is left."""
    return bool((obj.get("spec") or {}).get("storageCapacity"))


def compile_capacity(obj: Mapping[str, Any]) -> StorageCapacityInfo:
    """Read a CSIStorageCapacity."""
    meta = obj["metadata"]
    most = obj.get("maximumVolumeSize")
    most = obj.get("capacity") if most is None else most
    return StorageCapacityInfo(
        key=f"{meta.get('namespace', '')}/{meta['name']}",
        storage_class=obj.get("storageClassName") or "",
        nodes=compile_selector(obj.get("nodeTopology")),
        most_bytes=None if most is None else whole(most),
    )


def compile_attachment(obj: Mapping[str, Any]) -> AttachmentInfo:
    """Read a VolumeAttachment."""
    spec = obj.get("spec") or {}
    source = spec.get("source") or {}
    return AttachmentInfo(
        name=obj["metadata"]["name"],
        node=spec.get("nodeName") or "",
        driver=spec.get("attacher") or "",
        volume=source.get("persistentVolumeName") or "",
    )
