"""The filters of volumes for one pod: VolumeRestrictions, NodeVolumeLimits, VolumeBinding and VolumeZone.

Prepared once for a pod and then asked for each node, with the words of kube-scheduler 1.36. A claim that no node can
help (missing, lost, waiting for a controller) refuses the pod for all nodes: `refused`.

Different from kube-scheduler: a volume of an in-tree plugin that was moved to a CSI driver is checked by the labels in
its own node affinity, not by those of the driver. Nodes of clouds have both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from kubekit.scheduling.filters import Failure
from kubekit.scheduling.podinfo import NodeFacts, PodInfo
from kubekit.scheduling.volumes.binding import PodClaims, plan_volumes, sort_claims
from kubekit.scheduling.volumes.facts import ZONE_LABELS, ClaimInfo, PodVolume
from kubekit.scheduling.volumes.store import VolumePlan, VolumeStore

RESTRICTIONS, LIMITS, BINDING, ZONE = "VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"
SINGLE_POD: Final = "ReadWriteOncePod"
_USED_ALREADY: Final = "PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
_IN_USE: Final = Failure(RESTRICTIONS, (f"node(s) unavailable due to {_USED_ALREADY}",), resolvable=True)
_DISK_CONFLICT: Final = Failure(RESTRICTIONS, ("node(s) had no available disk",), resolvable=True)
_TOO_MANY: Final = Failure(LIMITS, ("node(s) exceed max volume count",), resolvable=True)
_OTHER_ZONE: Final = Failure(ZONE, ("node(s) had no available volume zone",))
_OF_TODAY: Final = dict(zip(ZONE_LABELS[:2], ZONE_LABELS[2:], strict=True))
Attached = tuple[str, str]


class VolumeCheck:
    """`check(node, pods)` is None when the pod's volumes allow the node; `refused` is a failure on every node."""

    def __init__(self, pod: PodInfo, store: VolumeStore) -> None:
        self._pod = pod
        self._store = store
        self._disks = [volume.disk for volume in pod.volumes if volume.disk is not None]
        self._claims = PodClaims()
        self._zones: list[tuple[str, frozenset[str]]] = []
        self._single: frozenset[str] = frozenset()
        self._in_use = False
        self.refused = self._prepare()

    def _prepare(self) -> Failure | None:
        """Look the claims up, in the order of kube-scheduler's filters; return why the pod cannot go anywhere."""
        pod, store = self._pod, self._store
        named = [(one, store.claim(f"{pod.namespace}/{one.claim}")) for one in pod.volumes if one.claim]
        for volume, claim in named:
            if claim is None and not volume.ephemeral:
                return Failure(RESTRICTIONS, (f'persistentvolumeclaim "{volume.claim}" not found',))
        for volume, claim in named:
            if trouble := _trouble(pod, volume, claim):
                return Failure(BINDING, (trouble,))
        # NB: kube-scheduler binds a claim twice that two volumes of a pod name; here it is bound once.
        self._claims = sort_claims(dict.fromkeys(claim for _, claim in named if claim is not None), store)
        if self._claims.immediate:
            return Failure(BINDING, ("pod has unbound immediate PersistentVolumeClaims",))
        kept = [claim for volume, claim in named if claim is not None and not volume.ephemeral]
        for claim in kept:
            volume_info = store.volume(claim.volume) if claim.volume else None
            if claim.volume and volume_info is None:
                return Failure(ZONE, (f'persistentvolume "{claim.volume}" not found',))
            if volume_info is not None:
                self._zones += volume_info.zones
        self._single = frozenset(claim.key for claim in kept if SINGLE_POD in claim.access_modes)
        self._in_use = any(map(store.is_used, self._single))
        return None

    def __call__(self, node: NodeFacts, pods: Iterable[PodInfo]) -> Failure | None:
        """
        Args:
            pods: those on the node, and those that it keeps room for.
        """
        if self.refused is not None:
            return self.refused
        there = [pod for pod in pods if pod.volumes]
        if self._disks and any(self._conflicts(pod) for pod in there):
            return _DISK_CONFLICT
        if self._in_use:
            return _IN_USE
        if self._exceeds_limits(node.name, there):
            return _TOO_MANY
        planned = self.plan(node)
        if not isinstance(planned, VolumePlan):
            return Failure(BINDING, planned)
        return None if self._in_zone(node.labels) else _OTHER_ZONE

    def plan(self, node: NodeFacts) -> VolumePlan | tuple[str, ...]:
        """Return what has to be done to bind the pod's claims on the node, or the reasons against the node."""
        return plan_volumes(self._claims, node, self._store)

    def _conflicts(self, other: PodInfo) -> bool:
        return any(
            volume.disk is not None and disk.conflicts(volume.disk) for disk in self._disks for volume in other.volumes
        )

    def _in_zone(self, labels: Mapping[str, str]) -> bool:
        if not any(key in labels for key in ZONE_LABELS):
            return True
        return all(labels.get(key, labels.get(_OF_TODAY.get(key, key))) in values for key, values in self._zones)

    # -- limits ------------------------------------------------------------------------------------------------------

    def _exceeds_limits(self, node: str, there: list[PodInfo]) -> bool:
        limits = self._store.node_limits.get(node)
        if not limits:
            return False
        new = _attached(self._pod, self._store)
        if not new:
            return False
        used = {one for pod in there for one in _attached(pod, self._store)}
        counted = Counter(driver for driver, _ in used)
        for attachment in self._store.attached_to(node):
            volume = self._store.volume(attachment.volume)
            handle = volume.attached[1] if volume is not None and volume.csi else ""
            if handle and attachment.driver and (attachment.driver, handle) not in used:
                counted[attachment.driver] += 1
        wanted = Counter(driver for driver, _ in new - used)
        return any(
            counted[driver] + count > limits.get(driver, counted[driver] + count) for driver, count in wanted.items()
        )


def _trouble(pod: PodInfo, volume: PodVolume, claim: ClaimInfo | None) -> str:
    """Return why a claim keeps its pod from every node; empty if it does not."""
    if claim is None:
        return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{volume.claim}"'
    if claim.lost:
        return f'persistentvolumeclaim "{claim.name}" bound to non-existent persistentvolume "{claim.volume}"'
    if claim.deleting:
        return f'persistentvolumeclaim "{claim.name}" is being deleted'
    if volume.ephemeral and not _is_owner(pod, claim):
        return f"PVC {claim.key} was not created for pod {pod.key} (pod is not owner)"
    return ""


def _is_owner(pod: PodInfo, claim: ClaimInfo) -> bool:
    return bool(claim.owner) and claim.owner == pod.uid


def _attached(pod: PodInfo, store: VolumeStore) -> set[Attached]:
    """Return the volumes of a pod that count for a node's limits, by driver and handle."""
    found = set()
    for volume in pod.volumes:
        driver, handle = volume.attached
        if volume.claim:
            claim = store.claim(f"{pod.namespace}/{volume.claim}")
            if claim is None or (volume.ephemeral and not _is_owner(pod, claim)):
                continue
            driver, handle = _attached_by_claim(claim, store)
        if driver and handle:
            found.add((driver, handle))
    return found


def _attached_by_claim(claim: ClaimInfo, store: VolumeStore) -> Attached:
    volume = store.volume(claim.volume) if claim.volume else None
    if volume is not None:
        return volume.attached
    storage = store.classes.get(claim.storage_class)
    return (storage.driver, f"claim {claim.key}") if storage is not None else ("", "")
