"""Preemption for gangs: the pods to evict so that a whole gang fits, with its topology. Nothing is changed.

Victims are found by the placing that decides for the gang afterwards:

1. Pods of lower priority leave in steps, those without a broken disruption budget and of the lowest priority first,
   until the whole gang has places. If it has none without all of them, no pod is evicted.
2. As many as possible are put back: first those on nodes with many of them, then the most important and the oldest.
   Halves are tried before single pods, so that a cluster of thousands takes dozens of tries.

A gang among the victims leaves as a whole, see `victims`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from gpuplane.scheduler.gangs.gang import Gang
from gpuplane.scheduler.gangs.placing import GangDecision, GangPlace, GangPlacer
from gpuplane.scheduler.gangs.victims import GangVictims
from gpuplane.scheduler.pods.objects import ScheduledPod
from gpuplane.scheduler.pods.preempt import GPUPreemption
from gpuplane.scheduler.queues.fair import FairQueues
from kubekit.scheduling import preemption
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.podinfo import PodInfo
from kubekit.scheduling.preemption import NEVER, WAITING, Budget

NO_VICTIMS: Final = "preemption: no pods of lower priority are in the way."
NOT_HELPFUL: Final = "preemption: it has no room without the pods of lower priority either."
FEW: Final = 64
"""Units to try first where thousands may be evicted: those on nodes with the fewest of them."""

Unit = tuple[PodInfo, ...]
_LEAVES: Final = False, -(2**31)  # before all others: pods that leave by themselves


class GangPreemptionPlan(msgspec.Struct, frozen=True):
    """The places of the gang's pods once the victims are gone; without places, `message` says why."""

    places: tuple[GangPlace, ...] = ()
    victims: tuple[PodInfo, ...] = ()
    violations: int = 0
    message: str = ""


class GangPreemption:
    """Plans preemption for gangs."""

    def __init__(
        self,
        cache: SchedulerCache,
        placer: GangPlacer,
        single: GPUPreemption,
        gangs: GangVictims,
        fair: FairQueues,
    ) -> None:
        self._cache = cache
        self._placer = placer
        self._single = single
        self._gangs = gangs
        self._fair = fair

    def plan(
        self,
        gang: Gang,
        pods: Sequence[ScheduledPod],
        bound: Sequence[ScheduledPod],
        budgets: Sequence[Budget],
    ) -> GangPreemptionPlan:
        """Return the victims whose places the gang gets, or why none help. Raises Retryable while quotas are unknown.

        Args:
            pods: those that are placed together.
            bound: pods of the gang that have a node already.
        """
        infos = [pod.info for pod in pods if pod.info is not None]
        if not all(info.may_preempt for info in infos):
            return GangPreemptionPlan(message=f"preemption: {NEVER}")
        least = min(infos, key=lambda info: info.priority)
        if self._waits_for_victims(infos, least.priority):
            return GangPreemptionPlan(message=WAITING)
        units = self._units(infos, least, {pod.metadata.uid for pod in bound})
        if not units:
            return GangPreemptionPlan(message=NO_VICTIMS)
        trial = _Trial(self, gang, pods, bound, infos)
        try:
            gone = self._enough(trial, units, budgets)
            if gone is None:
                return GangPreemptionPlan(message=NOT_HELPFUL)
            self._spare(trial, self._by_worth(gone, budgets))
            decision = trial.decide()
            victims = [pod for unit in trial.gone for pod in unit]
        finally:
            trial.end()
        victims = preemption.least_important_last([*victims, *self._gangs.mates(victims)])
        return GangPreemptionPlan(decision.places, tuple(victims), len(preemption.split(victims, budgets)[0]))

    def _waits_for_victims(self, infos: Collection[PodInfo], priority: int) -> bool:
        """Return whether pods leave a node that a pod of the gang is nominated to."""
        keys = {info.key for info in infos}
        nodes = {info.nominated for info in self._cache.nominated_pods() if info.key in keys}
        return any(
            other.terminating and (self._fair or other.priority < priority)
            for name in nodes
            for other in self._cache.nodes[name].pods.values()
        )

    def _units(self, infos: Sequence[PodInfo], least: PodInfo, own: Collection[str]) -> list[Unit]:
        if not self._fair and not any(priority < least.priority for priority in self._cache.priorities):
            return []
        others = [info for info in infos if info is not least]
        there = preemption.least_important_last(pod for pod in self._cache.pods.values() if pod.uid not in own)
        return self._gangs.units(self._fair.victims_for(least, others).together(there))

    def _enough(self, trial: _Trial, units: Sequence[Unit], budgets: Sequence[Budget]) -> list[Unit] | None:
        """Take units away until the gang fits; return those that are away, None where all do not suffice."""
        by_worth = self._by_worth(units, budgets)[::-1]
        levels: dict[tuple[bool, int], list[Unit]] = {}
        broken = _breaking(units, budgets)
        for unit in by_worth:
            level = any(pod.uid in broken for pod in unit), max(pod.priority for pod in unit)
            if all(pod.terminating for pod in unit):
                level = _LEAVES
            levels.setdefault(level, []).append(unit)
        away: list[Unit] = []
        for level in sorted(levels):
            before, listed = len(away), levels[level]
            few = FEW
            while before + len(listed) > len(away):
                more = listed[len(away) - before :][:few]
                trial.take(more)
                away += more
                few *= 4
                if trial.decide().places:
                    return away
        return None

    def _spare(self, trial: _Trial, units: Sequence[Unit]) -> None:
        """Put back as many of the units as possible, the first ones before the others."""
        trial.put_back(units)
        if trial.decide().places:
            return
        trial.take(units)
        if len(units) > 1:
            half = len(units) // 2
            self._spare(trial, units[:half])
            self._spare(trial, units[half:])

    def _by_worth(self, units: Sequence[Unit], budgets: Sequence[Budget]) -> list[Unit]:
        """Return the units, those to put back first at the beginning."""
        crowd = Counter(pod.node_name for unit in units for pod in unit)
        broken = _breaking(units, budgets)

        def worth(unit: Unit) -> tuple[bool, int, int, int, int, str, str]:
            return (
                all(pod.terminating for pod in unit),
                -sum(pod.uid in broken for pod in unit),
                -max(pod.priority for pod in unit),
                -len(unit),
                -max(crowd[pod.node_name] for pod in unit),
                min(pod.created for pod in unit),
                min(pod.node_name for pod in unit),
            )

        return sorted(units, key=worth)

    def decide(
        self, gang: Gang, pods: Sequence[ScheduledPod], bound: Sequence[ScheduledPod], infos: Sequence[PodInfo]
    ) -> GangDecision:
        """Return the decision for the gang, as it would be made now."""
        if self._fair.refuses(*infos, plans=True):
            return GangDecision()
        return self._placer.place(gang, pods, bound)

    def away(self, unit: Unit) -> contextlib.AbstractContextManager[None]:
        """Take the pods of a unit off their nodes for as long as the context lasts."""
        return self._single.without(unit)


class _Trial:
    """A gang, and the units that are away while places for it are tried."""

    def __init__(
        self,
        preemption_of: GangPreemption,
        gang: Gang,
        pods: Sequence[ScheduledPod],
        bound: Sequence[ScheduledPod],
        infos: Sequence[PodInfo],
    ) -> None:
        self._preemption = preemption_of
        self._asked = gang, pods, bound, infos
        self._away: dict[str, tuple[Unit, contextlib.AbstractContextManager[None]]] = {}  # by the first pod's uid

    @property
    def gone(self) -> list[Unit]:
        return [unit for unit, _ in self._away.values()]

    def decide(self) -> GangDecision:
        return self._preemption.decide(*self._asked)

    def take(self, units: Sequence[Unit]) -> None:
        for unit in units:
            context = self._preemption.away(unit)
            context.__enter__()
            self._away[unit[0].uid] = unit, context

    def put_back(self, units: Sequence[Unit]) -> None:
        for unit in units:
            self._away.pop(unit[0].uid)[1].__exit__(None, None, None)

    def end(self) -> None:
        self.put_back(self.gone)


def _breaking(units: Sequence[Unit], budgets: Sequence[Budget]) -> set[str]:
    """Return the uids of pods that break a budget if all units go, the least important first."""
    pods = preemption.least_important_last(pod for unit in units for pod in unit)[::-1]
    return {pod.uid for pod in preemption.split(pods, budgets)[0]}
