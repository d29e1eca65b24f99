"""Chooses volumes for a pod's claims on a node, and says when the binding of claims and volumes is complete. Pure.

1. A bound claim needs its volume's node affinity to match the node.
2. A claim that waits for its first pod gets the smallest volume of its class that matches the node.
3. If there is none, a volume is made near the node, where the class and the storage that is left allow it.

The choice is assumed in the store at once (`assume`), so that the next pod gets other volumes. Then volumes and claims
are changed in the cluster, and the pod is bound once a controller has completed the binding (`progress`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

import msgspec

from kubekit.scheduling.podinfo import NodeFacts
from kubekit.scheduling.volumes.facts import (
    NO_PROVISIONER,
    ClaimInfo,
    ClaimReference,
    StorageClassInfo,
    VolumeInfo,
)
from kubekit.scheduling.volumes.store import VolumePlan, VolumeStore

NODE_CONFLICT: Final = "node(s) didn't match PersistentVolume's node affinity"
NO_MATCH: Final = "node(s) didn't find available persistent volumes to bind"
NO_SPACE: Final = "node(s) did not have enough free storage"
NO_VOLUME: Final = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
_ORDER: Final = (NODE_CONFLICT, NO_MATCH, NO_SPACE, NO_VOLUME)


class PodClaims(msgspec.Struct, frozen=True):
    """The claims of a pod. `waiting` are bound with their first pod, `immediate` wait for a controller."""

    bound: tuple[ClaimInfo, ...] = ()
    waiting: tuple[ClaimInfo, ...] = ()
    immediate: tuple[ClaimInfo, ...] = ()


def sort_claims(claims: Iterable[ClaimInfo], store: VolumeStore) -> PodClaims:
    """Sort the claims of a pod by how they are bound. A controller binds a claim that names a volume."""
    bound, waiting, immediate = [], [], []
    for claim in claims:
        storage = store.classes.get(claim.storage_class)
        if claim.bound:
            bound.append(claim)
        elif storage is not None and storage.waits and not claim.volume:
            waiting.append(claim)
        else:
            immediate.append(claim)
    return PodClaims(tuple(bound), tuple(waiting), tuple(immediate))


def plan_volumes(claims: PodClaims, node: NodeFacts, store: VolumeStore) -> VolumePlan | tuple[str, ...]:
    """Return what has to be done to bind the claims on a node, or the reasons against the node."""
    reasons = _check_bound(claims.bound, node, store)
    plan: VolumePlan | str = VolumePlan(node.name)
    if claims.waiting:
        plan = _plan_waiting(claims.waiting, node, store)
    if isinstance(plan, VolumePlan):
        return reasons or plan
    return tuple(sorted((*reasons, plan), key=_ORDER.index))


def _check_bound(claims: Sequence[ClaimInfo], node: NodeFacts, store: VolumeStore) -> tuple[str, ...]:
    for claim in claims:
        volume = store.volume(claim.volume)
        if volume is None:
            return (NO_VOLUME,)
        if not volume.admits(node.labels):
            return (NODE_CONFLICT,)
    return ()


def _plan_waiting(claims: Sequence[ClaimInfo], node: NodeFacts, store: VolumeStore) -> VolumePlan | str:
    if any(claim.selected_node not in (None, node.name) for claim in claims):
        return NO_MATCH  # its volume is being made near another node
    provision = [claim for claim in claims if claim.selected_node is not None]
    chosen: dict[str, ClaimInfo] = {}
    static = []
    for claim in sorted((one for one in claims if one.selected_node is None), key=lambda one: one.size_bytes):
        volume = smallest_match(claim, node, store, chosen)
        if volume is None:
            provision.append(claim)
        else:
            chosen[volume.name] = claim
            static.append((_reserved(volume, claim), claim))
    for claim in provision:
        storage = store.classes.get(claim.storage_class)
        if storage is None or not _can_be_made(storage, node):
            return NO_MATCH
        if not _has_space(claim, storage, node, store):
            return NO_SPACE
    selected = [msgspec.structs.replace(claim, selected_node=node.name) for claim in provision]
    return VolumePlan(node.name, tuple(static), tuple(selected))


def smallest_match(
    claim: ClaimInfo, node: NodeFacts, store: VolumeStore, taken: dict[str, ClaimInfo]
) -> VolumeInfo | None:
    """Return the volume that is reserved for the claim, else the smallest that matches it on the node.

    None also where the reserved one does not match the node.
    """
    smallest: VolumeInfo | None = None
    for volume in store.of_class(claim.storage_class):
        if volume.name in taken or volume.deleting or volume.size_bytes < claim.size_bytes:
            continue
        if volume.block != claim.block or volume.attributes_class != claim.attributes_class:
            continue
        if volume.claim is not None:
            if not volume.claim.names(claim):
                continue
            return volume if volume.admits(node.labels) else None
        if not volume.available or not set(claim.access_modes) <= set(volume.access_modes):
            continue
        if claim.selector is not None and not claim.selector.matches(volume.labels):
            continue
        if (smallest is None or volume.size_bytes < smallest.size_bytes) and volume.admits(node.labels):
            smallest = volume
    return smallest


def _reserved(volume: VolumeInfo, claim: ClaimInfo) -> VolumeInfo:
    return msgspec.structs.replace(volume, claim=ClaimReference(claim.namespace, claim.name, claim.uid))


def _can_be_made(storage: StorageClassInfo, node: NodeFacts) -> bool:
    if storage.provisioner in ("", NO_PROVISIONER):
        return False
    if storage.topologies is None:
        return True
    return any(term.matches(node.name, node.labels) for term in storage.topologies)


def _has_space(claim: ClaimInfo, storage: StorageClassInfo, node: NodeFacts, store: VolumeStore) -> bool:
    if not claim.sized or storage.provisioner not in store.tracked_drivers:
        return True
    return any(
        one.storage_class == storage.name
        and one.most_bytes is not None
        and one.most_bytes >= claim.size_bytes
        and one.nodes is not None
        and one.nodes.matches(node.labels)
        for one in store.capacities.values()
    )


# -- carrying a plan out -----------------------------------------------------------------------------------------------


def assume(plan: VolumePlan, store: VolumeStore) -> None:
    """Count the volumes of a plan as taken."""
    for volume, _ in plan.static:
        store.assume_volume(volume)
    for claim in plan.provisions:
        store.assume_claim(claim)


def restore(plan: VolumePlan, store: VolumeStore) -> bool:
    """Take the assumptions of a plan back, where no later version has arrived; return whether anything changed."""
    ended = [store.restore_volume(volume) for volume, _ in plan.static]
    ended += [store.restore_claim(claim) for claim in plan.provisions]
    return any(ended)


class Progress(Enum):
    """State of the binding of a plan."""

    WAITING = "waiting"
    COMPLETE = "complete"


def progress(plan: VolumePlan, node: NodeFacts | None, store: VolumeStore) -> Progress | str:
    """Return how far the binding is by what watches delivered, or why it failed.

    Args:
        plan: with the versions that the API server gave the objects when they were changed.
        node: None where it is gone.
    """
    if node is None:
        return f'failed to get node "{plan.node}": node "{plan.node}" not found'
    for volume, wanted in plan.static:
        result = _progress_of_static(volume, wanted, node, store)
        if result is not Progress.COMPLETE:
            return result
    for wanted in plan.provisions:
        result = _progress_of_provision(wanted, node, store)
        if result is not Progress.COMPLETE:
            return result
    return Progress.COMPLETE


def _progress_of_static(sent: VolumeInfo, wanted: ClaimInfo, node: NodeFacts, store: VolumeStore) -> Progress | str:
    volume, claim = store.stored_volume(sent.name), store.stored_claim(wanted.key)
    if volume is None:
        return f'failed to check binding: persistentvolumes "{sent.name}" not found'
    if claim is None:
        return f'failed to check binding: persistentvolumeclaims "{wanted.key}" not found'
    if _is_older(volume.resource_version, sent.resource_version):
        return Progress.WAITING
    if not volume.admits(node.labels):
        return _mismatch(volume, node)
    if volume.claim is None or not volume.claim.uid:
        return f'ClaimRef got reset for pv "{volume.name}"'
    return Progress.COMPLETE if claim.bound else Progress.WAITING


def _progress_of_provision(sent: ClaimInfo, node: NodeFacts, store: VolumeStore) -> Progress | str:
    claim = store.stored_claim(sent.key)
    if claim is None:
        return f'failed to check provisioning pvc: persistentvolumeclaims "{sent.key}" not found'
    if _is_older(claim.resource_version, sent.resource_version):
        return Progress.WAITING
    if claim.selected_node != node.name:  # its driver could not make the volume there
        return f'provisioning failed for PVC "{claim.name}"'
    if claim.volume:
        volume = store.stored_volume(claim.volume)
        if volume is None:
            return Progress.WAITING  # another watch delivers it
        if not volume.admits(node.labels):
            return _mismatch(volume, node)
    return Progress.COMPLETE if claim.bound else Progress.WAITING


def _mismatch(volume: VolumeInfo, node: NodeFacts) -> str:
    return f'pv "{volume.name}" node affinity doesn\'t match node "{node.name}": no matching NodeSelectorTerms'


def _is_older(version: str, sent: str) -> bool:
    """Return whether a watch has not delivered the version that a write made."""
    return version.isdecimal() and sent.isdecimal() and int(version) < int(sent)
