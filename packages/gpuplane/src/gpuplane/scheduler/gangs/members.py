"""The pods of each gang, fed by the watch of pods, and what a gang needs next. `needs` is pure.

A gang is half bound while a pod that was to be bound together with a bound one waits. Each bound pod has an annotation
with the pods of its round, so a scheduler that starts again finds half bound gangs without a record of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from gpuplane.api.upgrade import unix_time
from gpuplane.scheduler.gangs.gang import Gang, GangSource, digest
from gpuplane.scheduler.pods.objects import ScheduledPod

GangKey = tuple[str, GangSource, str]
"""Namespace, source and name of a gang: an annotation and a PodGroup of the same name are two gangs."""


class GangNeeds(msgspec.Struct, frozen=True):
    """The waiting pods that have to be placed together now; `message` says why nothing can be placed."""

    together: tuple[ScheduledPod, ...] = ()
    message: str = ""


class GangMembers:
    """All pods that belong to gangs and have not ended."""

    def __init__(self) -> None:
        self._pods: dict[GangKey, dict[str, ScheduledPod]] = {}
        self._keys: dict[str, GangKey] = {}  # by uid of a pod

    def changed(self, old: Any, new: Any) -> None:
        """Handle a change of a pod, as an informer's handler."""
        if isinstance(old, ScheduledPod) and (before := key_of(old)) is not None:
            pods = self._pods.get(before, {})
            pods.pop(old.metadata.uid, None)
            self._keys.pop(old.metadata.uid, None)
            if not pods:
                self._pods.pop(before, None)
        if isinstance(new, ScheduledPod) and (now := key_of(new)) is not None:
            self._pods.setdefault(now, {})[new.metadata.uid] = new
            self._keys[new.metadata.uid] = now

    def __bool__(self) -> bool:
        return bool(self._pods)

    def key(self, uid: str) -> GangKey | None:
        """Return the gang of a pod, None for a pod of none."""
        return self._keys.get(uid)

    def of(self, key: GangKey) -> list[ScheduledPod]:
        return list(self._pods.get(key, {}).values())

    def names(self) -> list[GangKey]:
        return list(self._pods)


def key_of(pod: ScheduledPod) -> GangKey | None:
    """Return the gang that the pod belongs to."""
    return (pod.metadata.namespace, pod.gang.source, pod.gang.name) if pod.gang is not None else None


def needs(
    pod: ScheduledPod, gang: Gang, pods: Sequence[ScheduledPod], is_bound: Callable[[ScheduledPod], bool]
) -> GangNeeds:
    """Return what has to be placed for a pod of a gang.

    Args:
        pods: all pods of the gang.
        is_bound: whether a pod is bound, or its Binding is on its way.
    """
    live = [one for one in pods if not one.metadata.deletion_timestamp]
    if any(one.gang != pod.gang for one in live):
        return GangNeeds(
            message=f"gang {gang.name}: its pods differ in size, topology or time-out; cure: make them equal"
        )
    bound = [one for one in live if is_bound(one)]
    waiting = sorted(
        (one for one in live if one.ours and not is_bound(one) and not one.trouble and one.info and not one.info.gates),
        key=lambda one: (one.info.created if one.info is not None else "", one.metadata.name),
    )
    late = unfinished(live)
    if late:
        together = tuple(one for one in waiting if one.metadata.uid in late)
        if pod.metadata.uid not in late:
            return GangNeeds(
                message=f"gang {gang.name}: {len(together)} pods that start before this one have no place yet"
            )
        return GangNeeds(together)
    if bound:
        return GangNeeds((pod,))  # the gang runs: this pod replaces another, or is one more
    if len(waiting) < gang.size:
        return GangNeeds(message=f"gang {gang.name}: {len(waiting)} of {gang.size} pods are there")
    first = [one for one in waiting if one.metadata.uid != pod.metadata.uid][: gang.size - 1]
    return GangNeeds((pod, *first))


def unfinished(pods: Iterable[ScheduledPod]) -> set[str]:
    """Return the uids of pods that wait although they were to be bound together with one that is bound."""
    listed = list(pods)
    waiting = {digest(pod.metadata.uid): pod.metadata.uid for pod in listed if not pod.spec.node_name}
    digests = frozenset(waiting)
    # NB: an intersection takes the time of the smaller set. Rounds have up to 1,024 pods, and each change looks at all.
    return {waiting[one] for pod in listed if pod.spec.node_name for one in digests & pod.gang_round}


def half_bound(pods: Sequence[ScheduledPod]) -> list[ScheduledPod]:
    """Return the bound pods of rounds of which another pod waits; none for a gang that is whole."""
    live = [pod for pod in pods if not pod.metadata.deletion_timestamp]
    late = {digest(uid) for uid in unfinished(live)}
    if not late:
        return []
    return [pod for pod in live if pod.spec.node_name and not late.isdisjoint(pod.gang_round)]


def seconds_half_bound(pods: Iterable[ScheduledPod], now: str) -> float:
    """Return for how long the first of these pods has been bound."""
    end = unix_time(now) or 0.0
    return max((end - begin for pod in pods if (begin := unix_time(pod.bound_at)) is not None), default=0.0)
