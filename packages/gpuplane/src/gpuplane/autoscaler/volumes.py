"""The zones of volumes: a pod can only run where its volumes are, or where they can be made.

A claim that is bound follows the node affinity of its volume; one that is not, the allowed topologies of its storage
class. Claims that no node can help (missing, lost, waiting for a volume that is bound before pods are placed) are a
trouble of the pod. Pure; objects are cut to what this reads when they arrive.

Source: the semantics of volumes of Karpenter 1.14. Local and hostPath volumes name their node, which a node to come is
not, so their host name is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from gpuplane.autoscaler.domains import HOSTNAME
from gpuplane.autoscaler.requirements import label_of_today
from kubekit.api.kinds import built_in
from kubekit.api.meta import ObjectMeta, Resource, Struct
from kubekit.scheduling.selectors import NodeTerm, Requirement, compile_node_terms
from kubekit.scheduling.volumes.drivers import driver_of_provisioner, driver_of_volume

WAITS: Final = "WaitForFirstConsumer"
VolumeTerms = tuple[NodeTerm, ...]
"""Alternatives of which a node must satisfy one, for the sake of one volume."""


class PodVolumeClaim(msgspec.Struct, frozen=True):
    """A claim that a pod names. `ephemeral`: the pod's own template makes it, with this storage class."""

    name: str
    ephemeral: bool = False
    storage_class: str = ""


class WantedVolumeSpec(Struct):
    """`spec` of a PersistentVolumeClaim."""

    volume_name: str = ""
    storage_class_name: str = ""


class WantedVolumeStatus(Struct):
    """`status` of a PersistentVolumeClaim."""

    phase: str = ""


class WantedVolume(Struct):
    """A PersistentVolumeClaim."""

    RESOURCE: ClassVar[Resource] = built_in("v1", "PersistentVolumeClaim")

    metadata: ObjectMeta = ObjectMeta()
    spec: WantedVolumeSpec = WantedVolumeSpec()
    status: WantedVolumeStatus = WantedVolumeStatus()


class PlacedVolume(Struct):
    """A PersistentVolume. `spec` is empty once `terms` and `driver` are read of it."""

    RESOURCE: ClassVar[Resource] = built_in("v1", "PersistentVolume")

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    terms: VolumeTerms = ()
    driver: str = ""


class VolumeClass(Struct):
    """A StorageClass. `allowed_topologies` is empty once `terms` are read of it, `provisioner` once `driver` is."""

    RESOURCE: ClassVar[Resource] = built_in("storage.k8s.io/v1", "StorageClass")

    metadata: ObjectMeta = ObjectMeta()
    provisioner: str = ""
    volume_binding_mode: str = ""
    allowed_topologies: tuple[dict[str, Any], ...] = ()
    terms: VolumeTerms = ()
    driver: str = ""


class VolumeFacts(msgspec.Struct, frozen=True):
    """The volumes of the cluster; each looks up an object by its key, None for one that is not there.

    `complete`: such an object does not exist, which is a trouble of the pod. Else it is unknown, and its claim binds
    the pod to no place.
    """

    claim: Callable[[str], WantedVolume | None] = lambda key: None
    volume: Callable[[str], PlacedVolume | None] = lambda name: None
    storage_class: Callable[[str], VolumeClass | None] = lambda name: None
    complete: bool = True

    def knows(self, namespace: str, named: PodVolumeClaim) -> bool:
        """Return whether every object is there that says where the volume of a claim may be."""
        claim = self.claim(f"{namespace}/{named.name}")
        if claim is None:
            return named.ephemeral and self.storage_class(named.storage_class) is not None
        if claim.spec.volume_name:
            return self.volume(claim.spec.volume_name) is not None
        return self.storage_class(claim.spec.storage_class_name) is not None


# -- the cached parts of objects ---------------------------------------------------------------------------------------


def claims_of(pod: str, spec: Mapping[str, Any]) -> tuple[PodVolumeClaim, ...]:
    """Return the claims that a pod's volumes name; that of an ephemeral one is called as the pod and the volume."""
    found = []
    for volume in spec.get("volumes") or ():
        if named := volume.get("persistentVolumeClaim"):
            found.append(PodVolumeClaim(named.get("claimName") or ""))
        elif own := volume.get("ephemeral"):
            wanted = (own.get("volumeClaimTemplate") or {}).get("spec") or {}
            found.append(PodVolumeClaim(f"{pod}-{volume.get('name')}", True, wanted.get("storageClassName") or ""))
    return tuple(found)


def view_claim(claim: WantedVolume) -> WantedVolume:
    """Return the parts of a claim that are cached."""
    return msgspec.structs.replace(claim, metadata=_short(claim.metadata))


def view_volume(volume: PlacedVolume) -> PlacedVolume:
    """Return the parts of a volume that are cached."""
    required = (volume.spec.get("nodeAffinity") or {}).get("required")
    tied = any(volume.spec.get(kind) is not None for kind in ("local", "hostPath"))
    terms = tuple(_of_today(term, without=HOSTNAME if tied else "") for term in compile_node_terms(required) or ())
    # A term of which nothing is left admits every node, and so do the alternatives with it.
    terms = terms if all(term.expressions or term.fields for term in terms) else ()
    return PlacedVolume(metadata=_short(volume.metadata), terms=terms, driver=driver_of_volume(volume.spec))


def view_class(storage: VolumeClass) -> VolumeClass:
    """Return the parts of a storage class that are cached."""
    return VolumeClass(
        metadata=_short(storage.metadata),
        volume_binding_mode=storage.volume_binding_mode,
        terms=tuple(_allowed(one) for one in storage.allowed_topologies),
        driver=driver_of_provisioner(storage.provisioner),
    )


def _short(meta: ObjectMeta) -> ObjectMeta:
    return ObjectMeta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        resource_version=meta.resource_version,
        deletion_timestamp=meta.deletion_timestamp,
    )


def _allowed(topology: Mapping[str, Any]) -> NodeTerm:
    parts = topology.get("matchLabelExpressions") or ()
    return _of_today(NodeTerm(tuple(Requirement(one["key"], "In", tuple(one.get("values") or ())) for one in parts)))


def _of_today(term: NodeTerm, without: str = "") -> NodeTerm:
    """Return a term by the labels that a node to come has: drivers have names of their own for a zone."""
    parts = [msgspec.structs.replace(one, key=label_of_today(one.key)) for one in term.expressions]
    return NodeTerm(tuple(one for one in parts if one.key != without), term.fields)


# -- the decision ------------------------------------------------------------------------------------------------------


def volume_terms(
    namespace: str, claims: Sequence[PodVolumeClaim], facts: VolumeFacts
) -> tuple[tuple[VolumeTerms, ...], str]:
    """Return what the volumes of a pod ask of its node, and why it can never run; empty if it can."""
    found = []
    for claim in claims if facts.complete else [one for one in claims if facts.knows(namespace, one)]:
        terms = _terms_of(namespace, claim, facts)
        if isinstance(terms, str):
            return (), f"its volume claim {claim.name} {terms}"
        if terms:
            found.append(terms)
    return tuple(dict.fromkeys(found)), ""


def _terms_of(namespace: str, named: PodVolumeClaim, facts: VolumeFacts) -> VolumeTerms | str:
    """Return the alternatives of one claim, or why it keeps the pod from every node."""
    claim = facts.claim(f"{namespace}/{named.name}")
    if claim is None:
        return _terms_of_class(named.storage_class, facts) if named.ephemeral else "does not exist"
    if claim.metadata.deletion_timestamp:
        return "is being deleted"
    if claim.status.phase == "Lost":
        return "has lost its volume"
    if not claim.spec.volume_name:
        return _terms_of_class(claim.spec.storage_class_name, facts)
    volume = facts.volume(claim.spec.volume_name)
    return volume.terms if volume is not None else f"is bound to {claim.spec.volume_name}, which does not exist"


def _terms_of_class(name: str, facts: VolumeFacts) -> VolumeTerms | str:
    if not name:
        return "is not bound, and names no storage class"
    storage = facts.storage_class(name)
    if storage is None:
        return f"names the storage class {name}, which does not exist"
    if storage.volume_binding_mode != WAITS:
        return f"waits for a volume of the class {name}, which binds before a node is chosen"
    return storage.terms


def in_words(terms: VolumeTerms) -> str:
    """Return alternatives as words."""
    alternatives = (
        " and ".join(" ".join((one.key, one.operator, *one.values)) for one in (*term.expressions, *term.fields))
        for term in terms
    )
    return " or ".join(alternatives)
