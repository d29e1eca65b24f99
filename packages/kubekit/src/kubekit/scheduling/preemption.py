"""Making room for a more important pod: which pods of lower priority have to go, on which node.

A dry run takes all pods of lower priority off the node (in the cache), asks the filters, and puts back as many as
possible, the most important first and those that a disruption budget protects before the others. The cache is as
before when the functions return. Rules and order of preference as in kube-scheduler's DefaultPreemption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from kubekit.scheduling.cache import ClusterNode, SchedulerCache
from kubekit.scheduling.check import FilterCheck
from kubekit.scheduling.decide import Found, available, count_reasons
from kubekit.scheduling.filters import Failure
from kubekit.scheduling.podinfo import PodInfo
from kubekit.scheduling.selectors import Selector

NOT_HELPFUL: Final = Failure("", ("Preemption is not helpful for scheduling",))
NO_VICTIMS: Final = Failure("", ("No preemption victims found for incoming pod",))
NEVER: Final = "not eligible due to preemptionPolicy=Never."
WAITING: Final = "not eligible due to a terminating pod on the nominated node."
_MIN_CANDIDATES: Final = 100
_PRIORITY_OFFSET: Final = 2**31


class Budget(msgspec.Struct, frozen=True):
    """A PodDisruptionBudget as far as it matters here."""

    namespace: str
    selector: Selector | None
    allowed: int
    name: str = ""

    def covers(self, pod: PodInfo) -> bool:
        """Return whether the budget protects the pod."""
        return self.namespace == pod.namespace and self.selector is not None and self.selector.matches(pod.labels)


class Candidate(msgspec.Struct, frozen=True):
    """A node and the pods to take off it, the most important first; `violations` of budgets among them."""

    node: str
    victims: tuple[PodInfo, ...]
    violations: int = 0


class PreemptionPlan(msgspec.Struct, frozen=True):
    """The result of preemption: candidates by node, or why not (`message`).

    `counts`: the number of nodes with each reason, where nodes are what the message is about.
    """

    candidates: tuple[Candidate, ...] = ()
    message: str = ""
    counts: tuple[tuple[str, int], ...] = ()


def plan(
    pod: PodInfo,
    cache: SchedulerCache,
    found: Found,
    budgets: Sequence[Budget] = (),
    ignored: frozenset[str] = frozenset(),
    *,
    dry_run: Callable[[ClusterNode], Candidate | Failure] | None = None,
    most: int = 0,
    by_priority: bool = True,
) -> PreemptionPlan:
    """Dry-runs preemption on the nodes where taking pods off could help.

    Args:
        dry_run: the victims on a node, or why none help; by default those that the filters need.
        most: nodes with victims to find; 0 for kube-scheduler's number.
        by_priority: whether only pods of lower priority are victims; else `dry_run` decides which pods are.
    """
    if not pod.may_preempt:
        return PreemptionPlan(message=NEVER)
    there = found.failures.get(pod.nominated)
    # A node that no eviction helps, such as a cordoned one, is not worth waiting for.
    if pod.nominated and (there is None or there.resolvable) and _still_leaving(pod, cache, by_priority):
        return PreemptionPlan(message=WAITING)
    candidates: list[Candidate] = []
    verdicts: dict[str, Failure] = dict.fromkeys(found.failures, NOT_HELPFUL)
    victims = not by_priority or any(priority < pod.priority for priority in cache.priorities)
    wanted = most or max(_MIN_CANDIDATES, found.total // 10)
    for name, failure in found.failures.items():
        if not failure.resolvable:
            continue
        if not victims:
            verdicts[name] = NO_VICTIMS
            continue
        node = cache.nodes[name]
        outcome = dry_run(node) if dry_run is not None else _dry_run(pod, cache, node, budgets, ignored)
        if isinstance(outcome, Candidate):
            candidates.append(outcome)
            if len(candidates) >= wanted:
                break
        else:
            verdicts[name] = outcome
    if candidates:
        return PreemptionPlan(candidates=tuple(candidates))
    counts = count_reasons(verdicts.values())
    if found.absent or found.refused is not None:
        counts[NOT_HELPFUL.reasons[0]] += found.absent or found.total
    return PreemptionPlan(message=available(found.total, counts), counts=tuple(counts.items()))


def _still_leaving(pod: PodInfo, cache: SchedulerCache, by_priority: bool) -> bool:
    node = cache.nodes.get(pod.nominated)
    leaving = [other for other in node.pods.values() if other.terminating] if node is not None else []
    return any(not by_priority or other.priority < pod.priority for other in leaving)


def _importance(pod: PodInfo) -> tuple[int, str]:
    """Sorts the most important first: higher priority, then older."""
    return (-pod.priority, pod.created)


def least_important_last(pods: Iterable[PodInfo]) -> list[PodInfo]:
    """Sort pods: higher priority first, then older."""
    return sorted(pods, key=_importance)


def _dry_run(
    pod: PodInfo, cache: SchedulerCache, node: ClusterNode, budgets: Sequence[Budget], ignored: frozenset[str]
) -> Candidate | Failure:
    lower = least_important_last(p for p in node.pods.values() if p.priority < pod.priority)
    if not lower:
        return NO_VICTIMS
    removed = dict.fromkeys(p.key for p in lower)
    for victim in lower:
        cache.remove(victim.key)
    try:
        # NB: a node without facts loses its state with its last pod; feasible ones have facts.
        failure = FilterCheck(pod, cache, ignored)(node)
        if failure is not None:
            return failure
        violating, others = split(lower, budgets)
        victims = []
        violations = 0
        for group, protected in ((violating, True), (others, False)):
            for candidate in group:
                cache.place(candidate)
                if FilterCheck(pod, cache, ignored)(node) is None:
                    removed.pop(candidate.key)
                    continue
                cache.remove(candidate.key)
                victims.append(candidate)
                violations += protected
        if not victims:
            return NO_VICTIMS
        return Candidate(node.name, tuple(least_important_last(victims)), violations)
    finally:
        for victim in lower:
            if victim.key in removed:
                cache.place(victim)


def split(pods: Sequence[PodInfo], budgets: Sequence[Budget]) -> tuple[list[PodInfo], list[PodInfo]]:
    """Pods whose going would break a budget, and the others; budgets are used up in the order of `pods`."""
    left = [budget.allowed for budget in budgets]
    violating: list[PodInfo] = []
    others: list[PodInfo] = []
    for pod in pods:
        breaks = False
        for index, budget in enumerate(budgets):
            if not budget.covers(pod):
                continue
            left[index] -= 1
            breaks = breaks or left[index] < 0
        (violating if breaks else others).append(pod)
    return violating, others


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """Fewest broken budgets, least important victims, fewest of them, and of equals the youngest."""

    def cost(candidate: Candidate) -> tuple[int, int, int, int]:
        priorities = [victim.priority for victim in candidate.victims]
        return (
            candidate.violations,
            max(priorities, default=-_PRIORITY_OFFSET),
            sum(priority + _PRIORITY_OFFSET for priority in priorities),
            len(priorities),
        )

    lowest = min(cost(c) for c in candidates)
    equals = [c for c in candidates if cost(c) == lowest]
    return max(equals, key=_oldest_of_the_most_important)


def _oldest_of_the_most_important(candidate: Candidate) -> str:
    if not candidate.victims:
        return ""
    highest = max(victim.priority for victim in candidate.victims)
    return min(victim.created for victim in candidate.victims if victim.priority == highest)


def outbid(node: ClusterNode, pod: PodInfo) -> list[PodInfo]:
    """Pods of lower priority that were promised room on this node; the promise no longer holds."""
    return [other for other in node.nominated.values() if other.priority < pod.priority]
