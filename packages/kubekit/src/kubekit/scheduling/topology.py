"""Filters that look beyond one node: pod (anti)affinity and topology spread.

Both are prepared once for a pod (sums by topology value, from the cache's counts) and then asked for each node.
"""

from __future__ import annotations

from typing import Final

from kubekit.scheduling.cache import ClusterNode, SchedulerCache
from kubekit.scheduling.filters import Failure, node_matches, untolerated
from kubekit.scheduling.podinfo import NodeFacts, PodInfo, PodTerm, SpreadConstraint

_AFFINITY: Final = Failure("InterPodAffinity", ("node(s) didn't match pod affinity rules",))
_ANTI_AFFINITY: Final = Failure("InterPodAffinity", ("node(s) didn't match pod anti-affinity rules",), resolvable=True)
_EXISTING_ANTI_AFFINITY: Final = Failure(
    "InterPodAffinity", ("node(s) didn't satisfy existing pods anti-affinity rules",), resolvable=True
)
_SPREAD: Final = Failure(
    "PodTopologySpread", ("node(s) didn't match pod topology spread constraints",), resolvable=True
)
_SPREAD_LABEL: Final = Failure(
    "PodTopologySpread", ("node(s) didn't match pod topology spread constraints (missing required label)",)
)


class PodAffinity:
    """Required pod affinity and anti-affinity of one pod, and the anti-affinity of those already placed."""

    def __init__(self, pod: PodInfo, cache: SchedulerCache) -> None:
        required = pod.affinity.pod_required
        self._affinity: list[tuple[str, dict[str, int]]] = []
        for term in required:
            # NB: as in kube-scheduler a pod counts for a term only if it matches all terms of this pod.
            per_node = cache.count(term) if len(required) == 1 else _matching_all(required, cache)
            self._affinity.append((term.topology_key, cache.by_topology(per_node, term.topology_key)))
        # The first of a group that asks for its own company may go anywhere.
        self._first = not any(sums for _, sums in self._affinity) and all(cache.selects(term, pod) for term in required)
        self._anti = [
            (term.topology_key, cache.by_topology(cache.count(term), term.topology_key))
            for term in pod.affinity.anti_required
        ]
        self._existing = [
            (term.topology_key, cache.by_topology(carriers, term.topology_key))
            for term, carriers in cache.anti_terms.items()
            if cache.selects(term, pod)
        ]

    @property
    def idle(self) -> bool:
        return not (self._affinity or self._anti or self._existing)

    def check(self, facts: NodeFacts) -> Failure | None:
        labels = facts.labels
        for key, sums in self._affinity:
            value = labels.get(key)
            if value is None or (value not in sums and not self._first):
                return _AFFINITY
        if any(labels.get(key) in sums for key, sums in self._anti):
            return _ANTI_AFFINITY
        if any(labels.get(key) in sums for key, sums in self._existing):
            return _EXISTING_ANTI_AFFINITY
        return None


def _matching_all(terms: tuple[PodTerm, ...], cache: SchedulerCache) -> dict[str, int]:
    per_node: dict[str, int] = {}
    for name in cache.count(terms[0]):
        count = sum(all(cache.selects(term, pod) for term in terms) for pod in cache.nodes[name].pods.values())
        if count:
            per_node[name] = count
    return per_node


class TopologySpread:
    """Hard topology spread constraints of one pod."""

    def __init__(self, pod: PodInfo, cache: SchedulerCache) -> None:
        self._constraints = [c for c in pod.spread if c.hard]
        keys = [c.topology_key for c in self._constraints]
        self._self_match = [c.selects_pod for c in self._constraints]
        self._sums: list[dict[str, int]] = [{} for _ in self._constraints]
        if not self._constraints:
            return
        counts = [cache.count(c.term, live_only=True) for c in self._constraints]
        for node in cache.candidates():
            facts = node.facts
            if facts is None or not all(key in facts.labels for key in keys):
                continue
            for constraint, per_node, sums in zip(self._constraints, counts, self._sums, strict=True):
                if _counts_node(constraint, pod, facts):
                    value = facts.labels[constraint.topology_key]
                    sums[value] = sums.get(value, 0) + per_node.get(node.name, 0)

    @property
    def idle(self) -> bool:
        return not self._constraints

    def check(self, facts: NodeFacts) -> Failure | None:
        for constraint, sums, self_match in zip(self._constraints, self._sums, self._self_match, strict=True):
            value = facts.labels.get(constraint.topology_key)
            if value is None:
                return _SPREAD_LABEL
            least = 0 if len(sums) < constraint.min_domains else min(sums.values(), default=0)
            if sums.get(value, 0) + int(self_match) - least > constraint.max_skew:
                return _SPREAD
        return None


def _counts_node(constraint: SpreadConstraint, pod: PodInfo, facts: NodeFacts) -> bool:
    if constraint.honor_affinity and not node_matches(pod.affinity, facts.name, facts.labels):
        return False
    return not constraint.honor_taints or untolerated(facts.taints, pod.tolerations) is None


def spread_domains(
    pod: PodInfo, cache: SchedulerCache, nodes: list[ClusterNode]
) -> list[tuple[SpreadConstraint, dict[str, int]]]:
    """For scores: each soft constraint with the pods it counts by topology value, over the feasible nodes' values."""
    answer = []
    for constraint in pod.spread:
        if not constraint.hard:
            sums = cache.by_topology(cache.count(constraint.term, live_only=True), constraint.topology_key)
            values = {n.facts.labels.get(constraint.topology_key) for n in nodes if n.facts is not None}
            answer.append((constraint, {value: sums.get(value, 0) for value in values if value is not None}))
    return answer
