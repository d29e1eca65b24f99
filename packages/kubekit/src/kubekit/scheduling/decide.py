"""Decides a pod's node, as pure functions on the cache: feasible nodes, the best of them, and the message when there is
none.

The wording is kube-scheduler's (`FitError`), because people and tools read it in `kubectl describe`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import Final

import msgspec

from kubekit.scheduling.cache import ClusterNode, SchedulerCache
from kubekit.scheduling.check import FilterCheck
from kubekit.scheduling.devices.check import PLUGIN as DEVICES
from kubekit.scheduling.devices.facts import DeviceClaim
from kubekit.scheduling.filters import Failure
from kubekit.scheduling.podinfo import PodInfo

NO_NODES: Final = "no nodes available to schedule pods"
_MIN_FEASIBLE: Final = 100
_MIN_PERCENT: Final = 5
# The failure of a node that was never asked, because the pod is pinned to another one.
NOT_ASKED: Final = Failure("NodeAffinity", ("node(s) didn't satisfy plugin(s) [NodeAffinity]",))
# NB: where a filter refuses the pod before it asks nodes, kube-scheduler's search for claims to deallocate fails with
# these words, and preemption is not tried.
NOT_PREPARED: Final = "not found"
NO_CLAIMS: Final = "no new claims to deallocate"
NOT_DEALLOCATED: Final = "still not schedulable"


class Found(msgspec.Struct):
    """`feasible` in the order found. `failures` of the nodes asked; `absent` nodes were never asked.

    `refused`: why no node was asked, since the pod cannot go to any. `claimed`: the pod claims devices. `elsewhere` are
    its claims whose devices some node cannot reach.
    """

    feasible: list[ClusterNode]
    failures: dict[str, Failure]
    total: int
    absent: int = 0
    next_start: int = 0
    refused: Failure | None = None
    claimed: bool = False
    elsewhere: dict[str, DeviceClaim] = {}

    def plugins(self) -> frozenset[str]:
        """The filters that said no: what has to change before another try is worth it."""
        named = {failure.plugin for failure in self.failures.values()}
        if self.absent:
            named.add(NOT_ASKED.plugin)
        if self.refused is not None:
            named.add(self.refused.plugin)
        return frozenset(named)


def enough(total: int, percent: int = 0) -> int:
    """Return how many feasible nodes suffice for a good choice among `total`.

    `percent` is percentageOfNodesToScore; 0 is kube-scheduler's adaptive percentage.
    """
    if total < _MIN_FEASIBLE:
        return total
    percent = percent or max(50 - total // 125, _MIN_PERCENT)
    return max(total * percent // 100, _MIN_FEASIBLE)


def find(
    pod: PodInfo,
    cache: SchedulerCache,
    ignored: frozenset[str] = frozenset(),
    start: int = 0,
    percent: int = 0,
    within: Container[str] | None = None,
) -> Found:
    """Asks nodes from `start` on, in turn, until `enough` are feasible. A pinned pod asks one node only.

    Args:
        within: the only nodes to ask, None for all.
    """
    check, total = FilterCheck(pod, cache, ignored), cache.node_count
    if check.refused is not None:
        return Found([], {}, total, next_start=start, refused=check.refused)
    if pod.affinity.pinned:
        node = cache.nodes.get(pod.affinity.pinned)
        if node is None or node.facts is None or (within is not None and node.name not in within):
            return Found([], {}, total, absent=total)
        failure = check(node)
        found = Found([] if failure else [node], {}, total, absent=total - 1, next_start=start)
        if failure:
            found.failures[node.name] = failure
        _note_claims(found, check)
        return found
    nodes, absent = cache.candidates(), 0
    if named := pod.affinity.named:
        nodes = [node for node in nodes if node.name in named]
        absent = total - len(nodes)
    if within is not None:
        nodes = [node for node in nodes if node.name in within]
    if pod.nominated and (within is None or pod.nominated in within):
        promised = cache.nodes.get(pod.nominated)
        if promised is not None and promised.facts is not None and check(promised) is None:
            return Found([promised], {}, len(nodes), next_start=start)
    found = Found([], {}, total, absent=absent)
    wanted, asked = enough(len(nodes), percent), 0
    for offset in range(len(nodes)):
        node = nodes[(start + offset) % len(nodes)]
        asked += 1
        failure = check(node)
        if failure is not None:
            found.failures[node.name] = failure
            continue
        found.feasible.append(node)
        if len(found.feasible) >= wanted:
            break
    found.next_start = (start + asked) % len(nodes) if nodes else 0
    _note_claims(found, check)
    return found


def _note_claims(found: Found, check: FilterCheck) -> None:
    if check.devices is not None:
        found.claimed, found.elsewhere = True, check.devices.elsewhere


def best(nodes: list[ClusterNode], scores: list[int], tie: int = 0) -> ClusterNode:
    """The node with the highest score; `tie` picks among equals (kube-scheduler picks at random)."""
    highest = max(scores)
    equals = [node for node, score in zip(nodes, scores, strict=True) if score == highest]
    return equals[tie % len(equals)]


def available(total: int, counts: Mapping[str, int]) -> str:
    """`0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu.`"""
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
    return f"0/{total} nodes are available:" + (f" {reasons}." if reasons else "")


def count_reasons(failures: Iterable[Failure]) -> Counter[str]:
    return Counter(reason for failure in failures for reason in failure.reasons)


def fit_error(found: Found, preemption: str = "") -> str:
    """The message of FailedScheduling. `preemption`: what became of the try to make room."""
    if not found.total:
        return NO_NODES
    if found.refused is not None:
        text = f"0/{found.total} nodes are available: {', '.join(found.refused.reasons)}."
        if found.refused.plugin != DEVICES:
            return f"{text} {NOT_PREPARED}"
        return f"{text} {NO_CLAIMS}, preemption: {preemption}" if preemption else text
    counts = count_reasons(found.failures.values())
    if found.absent:
        counts[NOT_ASKED.reasons[0]] += found.absent
    text = available(found.total, counts)
    claims = NOT_DEALLOCATED if found.claimed else NO_CLAIMS
    return f"{text} {claims}, preemption: {preemption}" if preemption else text
