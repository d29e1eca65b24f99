"""Gangs as victims of preemption: a gang with fewer pods than its minimum is useless, so all of it is evicted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuplane.scheduler.gangs.gang import Gang
from gpuplane.scheduler.gangs.groups import GangLookup
from gpuplane.scheduler.gangs.members import GangKey, GangMembers
from kubekit.scheduling import preemption
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.podinfo import PodInfo


class GangVictims:
    """Finds the pods that are evicted together."""

    def __init__(self, cache: SchedulerCache, members: GangMembers, groups: GangLookup) -> None:
        self._cache = cache
        self._members = members
        self._groups = groups

    def __bool__(self) -> bool:
        return bool(self._members)

    def mates(self, victims: Iterable[PodInfo]) -> list[PodInfo]:
        """Return the other pods of gangs that fall below their minimum without the victims."""
        lost: dict[GangKey, set[str]] = {}
        for victim in victims:
            if (key := self._members.key(victim.uid)) is not None:
                lost.setdefault(key, set()).add(victim.uid)
        found = []
        for key, uids in lost.items():
            bound = self._bound(key)
            left = [info for info in bound if info.uid not in uids]
            if len(left) < self._minimum(key, len(bound)):
                found += left
        return found

    def units(self, pods: Sequence[PodInfo]) -> list[tuple[PodInfo, ...]]:
        """Return the pods in parts that are evicted together. Pods that cannot be evicted with their gang are left out.

        Args:
            pods: all pods that may be evicted.
        """
        allowed = {pod.uid for pod in pods}
        found: list[tuple[PodInfo, ...]] = []
        seen: set[GangKey] = set()
        for pod in pods:
            key = None if pod.terminating else self._members.key(pod.uid)
            if key is None:
                found.append((pod,))
            elif key not in seen:
                seen.add(key)
                bound = preemption.least_important_last(self._bound(key))
                minimum = self._minimum(key, len(bound))
                if all(info.uid in allowed for info in bound):
                    found.append(tuple(bound[:minimum]))
                found += [(info,) for info in bound[minimum:] if info.uid in allowed]
        return found

    def _bound(self, key: GangKey) -> list[PodInfo]:
        """Return the placed pods of the gang that do not leave."""
        found = []
        for pod in self._members.of(key):
            info = self._cache.pods.get(pod.info.key) if pod.info is not None else None
            if info is not None and info.uid == pod.metadata.uid and not info.terminating:
                found.append(info)
        return found

    def _minimum(self, key: GangKey, bound: int) -> int:
        """Return the number of pods below which the gang is useless; all of them for a gang whose size is unknown."""
        declared = next((pod.gang for pod in self._members.of(key) if pod.gang is not None), None)
        gang = self._groups.gang(key[0], declared) if declared is not None else ""
        return min(gang.size, bound) if isinstance(gang, Gang) else bound
