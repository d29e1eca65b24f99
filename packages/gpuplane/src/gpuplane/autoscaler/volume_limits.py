"""The number of volumes that a node attaches: a CSI driver states it in the CSINode of the node.

Volumes count by their claims, so one that several pods use counts once on a node. A driver that states no number
attaches any. Pure.

The number of a node to buy is unknown until its driver has started. The largest number that any node here has stated
counts for it: pods with more volumes than that would have a node bought again and again, and none would take them.

Invariant: while pods are added to a node, a pod that its volumes keep away stays away, and so do pods with as many
volumes that no other pod uses. So a refusal holds for a kind of pods.

Source: the semantics of volume limits of Karpenter 1.14, which knows none of nodes to buy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

import msgspec

from gpuplane.autoscaler.volumes import PodVolumeClaim, VolumeFacts
from kubekit.api.kinds import built_in
from kubekit.api.meta import ObjectMeta, Resource, Struct

VolumeLimits = Mapping[str, int]
"""CSI driver -> the most volumes of it that a node attaches."""


class AllocatableVolumes(Struct):
    """`allocatable` of a driver; without a count it attaches any number."""

    count: int | None = None


class NodeDriver(Struct):
    """A CSI driver of a node."""

    name: str = ""
    allocatable: AllocatableVolumes | None = None


class NodeDriversSpec(Struct):
    """`spec` of a CSINode; a node without drivers has null."""

    drivers: tuple[NodeDriver, ...] | None = None


class NodeDrivers(Struct):
    """A CSINode, by the name of its node. `spec` is empty once `limits` are read of it."""

    RESOURCE: ClassVar[Resource] = built_in("storage.k8s.io/v1", "CSINode")

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeDriversSpec = NodeDriversSpec()
    limits: VolumeLimits = {}


_LIMITS: Final[dict[tuple[tuple[str, int], ...], VolumeLimits]] = {}  # those of nodes of one type are equal
_MOST_LIMITS: Final = 1024


def view_drivers(drivers: NodeDrivers) -> NodeDrivers:
    """Return the parts of a CSINode that are cached."""
    stated = [(one.name, one.allocatable.count) for one in drivers.spec.drivers or () if one.allocatable is not None]
    found = tuple(sorted((name, count) for name, count in stated if count is not None))
    if len(_LIMITS) >= _MOST_LIMITS:
        _LIMITS.clear()
    meta = drivers.metadata
    return NodeDrivers(
        metadata=ObjectMeta(name=meta.name, resource_version=meta.resource_version),
        limits=_LIMITS.setdefault(found, dict(found)),
    )


class AttachedVolume(NamedTuple):
    """A volume that counts on the node of its pod. `shared`: several pods use it."""

    driver: str
    claim: str  # namespace/name
    shared: bool


class VolumeRoom(msgspec.Struct, frozen=True):
    """The volumes that a node still attaches, by driver, and those that are there."""

    left: VolumeLimits = {}
    there: frozenset[AttachedVolume] = frozenset()

    def after(self, volumes: Sequence[AttachedVolume]) -> VolumeRoom | None:
        """Return the room that one more pod leaves; None if its volumes are too many."""
        new = [one for one in volumes if one not in self.there]
        if not new:
            return self
        left = dict(self.left)
        for driver, count in Counter(one.driver for one in new).items():
            if driver in left:
                left[driver] -= count
                if left[driver] < 0:
                    return None
        return VolumeRoom(left, self.there.union(new))


UNLIMITED: Final = VolumeRoom()


class AttachedVolumes:
    """The volumes of pods at one moment that count on some node.

    Args:
        limits: node -> what its drivers state.
        most: what drivers are taken to state on nodes to come.
        pods: namespace and claims of each pod that waits or runs.
    """

    def __init__(
        self,
        facts: VolumeFacts,
        limits: Mapping[str, VolumeLimits],
        most: VolumeLimits,
        pods: Iterable[tuple[str, Sequence[PodVolumeClaim]]],
    ) -> None:
        self._facts = facts
        self._limits = limits
        self._most = most
        self._drivers = frozenset(driver for one in (*limits.values(), most) for driver in one)
        self._shared: set[str] = set()
        if not self._drivers:
            return
        seen: set[str] = set()
        for namespace, claims in pods:
            for key in {f"{namespace}/{one.name}" for one in claims}:
                (self._shared if key in seen else seen).add(key)

    def of(self, namespace: str, claims: Sequence[PodVolumeClaim]) -> tuple[AttachedVolume, ...]:
        """Return the volumes of a pod, each once."""
        if not self._drivers or not claims:
            return ()
        found = set()
        for one in claims:
            key = f"{namespace}/{one.name}"
            driver = self._driver(key, one)
            if driver in self._drivers:
                found.add(AttachedVolume(driver, key, key in self._shared))
        return tuple(sorted(found))

    def room(
        self, node: str, pods: Iterable[tuple[str, Sequence[PodVolumeClaim]]], *, joins: bool = False
    ) -> VolumeRoom:
        """Return the room of a node for volumes, next to those of the pods there.

        Args:
            joins: drivers that have stated nothing there yet count as on a node to buy.
        """
        stated = self._limits.get(node, {})
        limits = {**self._most, **stated} if joins else stated
        if not limits:
            return UNLIMITED
        there = frozenset(one for namespace, claims in pods for one in self.of(namespace, claims))
        used = Counter(one.driver for one in there)
        return VolumeRoom({driver: count - used[driver] for driver, count in limits.items()}, there)

    def _driver(self, key: str, named: PodVolumeClaim) -> str:
        """Return the driver of a claim: of its volume, else of its class; empty if there is none."""
        claim = self._facts.claim(key)
        if claim is not None and claim.spec.volume_name:
            volume = self._facts.volume(claim.spec.volume_name)
            return volume.driver if volume is not None else ""
        storage = self._facts.storage_class(claim.spec.storage_class_name if claim is not None else named.storage_class)
        return storage.driver if storage is not None else ""


def alike(volumes: Iterable[AttachedVolume]) -> list[str | AttachedVolume]:
    """Return what volumes have in common with those of pods that the same nodes refuse for their number."""
    return [one if one.shared else one.driver for one in volumes]


def too_many(volumes: Iterable[AttachedVolume], limits: VolumeLimits) -> str:
    """Return why no node attaches the volumes of one pod; empty if one may."""
    if not limits:
        return ""
    for driver, count in sorted(Counter(one.driver for one in volumes).items()):
        if count > limits.get(driver, count):
            return f"its {count} volumes of {driver} are more than any node here has attached so far: {limits[driver]}"
    return ""
