"""The domains of topology keys while nodes are filled: how many pods of a term each zone, or each node, has.

The filters of `kubekit.scheduling` sum over all nodes for each pod, as a scheduler may that places one pod at a time.
Here thousands of pods are placed in one decision, so the sums are kept, and a check costs what its domains cost.

Invariant (a test compares them): a check answers as the filters of `kubekit.scheduling.topology` do on the same cache.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.filters import node_matches, untolerated
from kubekit.scheduling.podinfo import Affinity, NodeFacts, PodInfo, PodTerm, PodToleration, SpreadConstraint

HOSTNAME: Final = "kubernetes.io/hostname"


class _Eligible(msgspec.Struct, frozen=True):
    """The nodes that count for a spread constraint: `affinity` and `tolerations` are None where they do not matter."""

    keys: tuple[str, ...]
    affinity: Affinity | None = None
    tolerations: tuple[PodToleration, ...] | None = None

    def admits(self, facts: NodeFacts) -> bool:
        if not all(key in facts.labels for key in self.keys):
            return False
        if self.affinity is not None and not node_matches(self.affinity, facts.name, facts.labels):
            return False
        return self.tolerations is None or untolerated(facts.taints, self.tolerations) is None


class _Sums(msgspec.Struct, eq=False):
    """Pods of a term by the value of a label; `nodes` has how many nodes have the value."""

    term: PodTerm
    live_only: bool
    key: str
    eligible: _Eligible
    pods: dict[str, int] = {}
    nodes: dict[str, int] = {}

    def add_node(self, facts: NodeFacts, pods: int, sign: int) -> None:
        value = facts.labels.get(self.key)
        if value is None or not self.eligible.admits(facts):
            return
        nodes = self.nodes.get(value, 0) + sign
        if nodes:
            self.nodes[value] = nodes
            self.pods[value] = self.pods.get(value, 0) + sign * pods
        else:
            del self.nodes[value], self.pods[value]


class DomainCache(SchedulerCache):
    """The scheduler's cache with sums by domain. Namespaces have no labels here."""

    def __init__(self) -> None:
        super().__init__()
        self._sums: dict[tuple[PodTerm, bool, str, _Eligible], _Sums] = {}
        self._carriers: dict[PodTerm, dict[str, int]] = {}  # the same by the value of the term's label

    def set_node(self, facts: NodeFacts) -> None:
        old = self.nodes[facts.name].facts if facts.name in self.nodes else None
        for sums in self._sums.values():
            pods = self._pods_of(sums, facts.name)
            if old is not None:
                sums.add_node(old, pods, -1)
            sums.add_node(facts, pods, 1)
        self._move_carriers(facts.name, old, -1)
        super().set_node(facts)
        self._move_carriers(facts.name, facts, 1)

    def remove_node(self, name: str) -> None:
        old = self.nodes[name].facts if name in self.nodes else None
        if old is not None:
            for sums in self._sums.values():
                sums.add_node(old, self._pods_of(sums, name), -1)
            self._move_carriers(name, old, -1)
        super().remove_node(name)

    def _apply(self, pod: PodInfo, sign: int) -> None:
        facts = self.nodes[pod.node_name].facts if pod.node_name in self.nodes else None
        if facts is not None:
            for sums in self._sums.values():
                value = facts.labels.get(sums.key)
                counts = value in sums.pods and not (sums.live_only and pod.terminating)
                if value is not None and counts and self.selects(sums.term, pod) and sums.eligible.admits(facts):
                    sums.pods[value] += sign
            for term in pod.affinity.anti_required:
                _bump(self._carriers.setdefault(term, {}), facts.labels.get(term.topology_key), sign)
        super()._apply(pod, sign)

    def _move_carriers(self, name: str, facts: NodeFacts | None, sign: int) -> None:
        if facts is None:
            return
        for term, per_node in self.anti_terms.items():
            if name in per_node:
                _bump(self._carriers.setdefault(term, {}), facts.labels.get(term.topology_key), sign * per_node[name])

    def _pods_of(self, sums: _Sums, name: str) -> int:
        return self.count(sums.term, sums.live_only).get(name, 0)

    def carriers(self, term: PodTerm) -> Mapping[str, int]:
        """Return how many pods that carry an anti-affinity term each domain has."""
        return self._carriers.get(term, {})

    def domain_sums(
        self, term: PodTerm, key: str, eligible: _Eligible | None = None, *, live_only: bool = False
    ) -> Mapping[str, int]:
        """Return how many pods of a term each domain has, domains without one too; kept current, do not change."""
        eligible = eligible or _Eligible(())
        place = (term, live_only, key, eligible)
        sums = self._sums.get(place)
        if sums is None:
            sums = self._sums[place] = _Sums(term, live_only, key, eligible)
            per_node = self.count(term, live_only)
            for node in self.candidates():
                if node.facts is not None:
                    sums.add_node(node.facts, per_node.get(node.name, 0), 1)
        return sums.pods


class DomainCheck:
    """Check of one pod at one moment: whether the pods that are placed admit it on a node, by the node's labels.

    `levels` are the least counts of its spread constraints: what a full domain refuses is refused until they rise.
    """

    def __init__(self, pod: PodInfo, cache: DomainCache) -> None:
        required = pod.affinity.pod_required
        # NB: as in kube-scheduler a pod counts for a term only if it matches all terms of this pod.
        self._affinity = [
            (term.topology_key, cache.domain_sums(term, term.topology_key))
            if len(required) == 1
            else (term.topology_key, _matching_all(required, term.topology_key, cache))
            for term in required
        ]
        self._first = not any(any(sums.values()) for _, sums in self._affinity) and all(
            cache.selects(term, pod) for term in required
        )
        self._apart = [
            (term.topology_key, cache.domain_sums(term, term.topology_key)) for term in pod.affinity.anti_required
        ]
        self._apart += [
            (term.topology_key, cache.carriers(term)) for term in cache.anti_terms if cache.selects(term, pod)
        ]
        hard = [one for one in pod.spread if one.hard]
        keys = tuple(one.topology_key for one in hard)
        self._spread = [(one, _spread_sums(one, keys, pod, cache), int(cache.selects(one.term, pod))) for one in hard]
        self.levels = tuple(
            0 if len(sums) < one.min_domains else min(sums.values(), default=0) for one, sums, _ in self._spread
        )

    @property
    def seeks_others(self) -> bool:
        """Return whether a node that refuses the pod now may admit it once another pod is there."""
        return bool(self._affinity)

    def admits(self, labels: Mapping[str, str], keys: Collection[str] | None = None) -> bool:
        """Return whether a node with these labels admits the pod; with `keys` by these labels only."""
        for key, sums in self._affinity:
            value = labels.get(key)
            if (keys is None or key in keys) and (value is None or (not sums.get(value) and not self._first)):
                return False
        for key, sums in self._apart:
            if (keys is None or key in keys) and sums.get(labels.get(key, "")):
                return False
        for (constraint, sums, own), level in zip(self._spread, self.levels, strict=True):
            if keys is not None and constraint.topology_key not in keys:
                continue
            value = labels.get(constraint.topology_key)
            if value is None:
                return False
            # A node to come may be a domain without pods that no sum has yet.
            least = level if value in sums else 0
            if sums.get(value, 0) + own - least > constraint.max_skew:
                return False
        return True


def _spread_sums(
    constraint: SpreadConstraint, keys: tuple[str, ...], pod: PodInfo, cache: DomainCache
) -> Mapping[str, int]:
    eligible = _Eligible(
        keys,
        Affinity(pod.affinity.node_selector, pod.affinity.node_required) if constraint.honor_affinity else None,
        pod.tolerations if constraint.honor_taints else None,
    )
    return cache.domain_sums(constraint.term, constraint.topology_key, eligible, live_only=True)


def _matching_all(terms: tuple[PodTerm, ...], key: str, cache: DomainCache) -> dict[str, int]:
    per_node = {}
    for name in cache.count(terms[0]):
        count = sum(all(cache.selects(term, pod) for term in terms) for pod in cache.nodes[name].pods.values())
        if count:
            per_node[name] = count
    return cache.by_topology(per_node, key)


def _bump(counts: dict[str, int], value: str | None, sign: int) -> None:
    if value is not None:
        counts[value] = counts.get(value, 0) + sign
