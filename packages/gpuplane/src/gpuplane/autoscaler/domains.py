"""The domains of topology keys while nodes are filled: how many pods of a term each zone, or each node, has.

The filters of `kubekit.scheduling` sum over all nodes for each pod, as a scheduler may that places one pod at a time.
Here thousands of pods are placed in one decision, so the sums are cached, and a check costs what its domains cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.filters import node_matches, untolerated
from kubekit.scheduling.podinfo import Affinity, NodeFacts, PodInfo, PodTerm, PodToleration

HOSTNAME: Final = "kubernetes.io/hostname"


class EligibleNodes(msgspec.Struct, frozen=True):
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
    """Pods of a term by the value of a label."""

    term: PodTerm
    live_only: bool
    domains: _Domains
    pods: dict[str, int] = {}

    def counts(self, pod: PodInfo) -> bool:
        return not (self.live_only and pod.terminating) and self.term.selects(pod.namespace, pod.labels, {})


class _Domains(msgspec.Struct, eq=False):
    """The values of a label. `nodes` has how many nodes have each, `places` the value of each node, `sums` the pods."""

    key: str
    eligible: EligibleNodes
    nodes: dict[str, int] = {}
    places: dict[str, str] = {}
    sums: list[_Sums] = []

    def move(self, node: str, facts: NodeFacts | None, pods: Iterable[PodInfo]) -> None:
        """Put a node with its pods where its labels say, out of all domains without facts."""
        old, new = self.places.get(node), None
        if facts is not None and self.eligible.admits(facts):
            new = facts.labels.get(self.key)
        if old == new:
            return
        there = [(sums, sum(sums.counts(pod) for pod in pods)) for sums in self.sums]
        if new is not None:
            self.places[node] = new
            self.nodes[new] = self.nodes.get(new, 0) + 1
            for sums, count in there:
                sums.pods[new] = sums.pods.get(new, 0) + count
        else:
            del self.places[node]
        if old is not None:
            self.nodes[old] -= 1
            for sums, count in there:
                sums.pods[old] -= count
            if not self.nodes[old]:
                del self.nodes[old]
                for sums in self.sums:
                    del sums.pods[old]


class DomainCache(SchedulerCache):
    """The scheduler's cache with sums by domain. Namespaces have no labels here."""

    def __init__(self) -> None:
        super().__init__()
        self._sums: dict[tuple[PodTerm, bool, str, EligibleNodes], _Sums] = {}
        self._domains: dict[tuple[str, EligibleNodes], _Domains] = {}
        # By namespace, so that a pod is compared with the terms about its own only; "" has terms about any.
        self._about: dict[str, list[_Sums]] = {}
        self._pods_in: dict[str, dict[str, PodInfo]] = {}
        self._carriers: dict[PodTerm, dict[str, int]] = {}  # the same by the value of the term's label

    def set_node(self, facts: NodeFacts) -> None:
        self._move(facts.name, facts)
        super().set_node(facts)

    def remove_node(self, name: str) -> None:
        self._move(name, None)
        super().remove_node(name)

    def _move(self, name: str, facts: NodeFacts | None) -> None:
        known = self.nodes.get(name)
        pods = known.pods.values() if known is not None else ()
        for domains in self._domains.values():
            domains.move(name, facts, pods)
        if pods:
            old = known.facts if known is not None else None
            self._move_carriers(name, old, -1)
            self._move_carriers(name, facts, 1)

    def _apply(self, pod: PodInfo, sign: int) -> None:
        facts = self.nodes[pod.node_name].facts if pod.node_name in self.nodes else None
        if sign > 0:
            self._pods_in.setdefault(pod.namespace, {})[pod.key] = pod
        else:
            self._pods_in[pod.namespace].pop(pod.key, None)
        if facts is not None:
            for sums in (*self._about.get(pod.namespace, ()), *self._about.get("", ())):
                value = sums.domains.places.get(pod.node_name)
                if value is not None and sums.counts(pod):
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

    def carriers(self, term: PodTerm) -> Mapping[str, int]:
        """Return how many pods that carry an anti-affinity term each domain has."""
        return self._carriers.get(term, {})

    def domain_sums(
        self, term: PodTerm, key: str, eligible: EligibleNodes | None = None, *, live_only: bool = False
    ) -> Mapping[str, int]:
        """Return how many pods of a term each domain has, domains without one too; kept current, do not change."""
        eligible = eligible or EligibleNodes(())
        place = (term, live_only, key, eligible)
        sums = self._sums.get(place)
        if sums is None:
            domains = self._domains_of(key, eligible)
            sums = self._sums[place] = _Sums(term, live_only, domains, dict.fromkeys(domains.nodes, 0))
            domains.sums.append(sums)
            anywhere = term.namespace_selector is not None
            for namespace in ("",) if anywhere else term.namespaces:
                self._about.setdefault(namespace, []).append(sums)
            for namespace in self._pods_in if anywhere else term.namespaces:
                known: dict[int, bool] = {}  # the pods of one workload share their labels, and so the answer
                for pod in self._pods_in.get(namespace, {}).values():
                    value = domains.places.get(pod.node_name)
                    if value is None or (live_only and pod.terminating):
                        continue
                    selected = known.get(id(pod.labels))
                    if selected is None:
                        selected = known[id(pod.labels)] = term.selects(pod.namespace, pod.labels, {})
                    sums.pods[value] += selected
        return sums.pods

    def _domains_of(self, key: str, eligible: EligibleNodes) -> _Domains:
        domains = self._domains.get((key, eligible))
        if domains is None:
            domains = self._domains[key, eligible] = _Domains(key, eligible)
            for node in self.candidates():
                domains.move(node.name, node.facts, ())
        return domains


def _bump(counts: dict[str, int], value: str | None, sign: int) -> None:
    if value is not None:
        counts[value] = counts.get(value, 0) + sign
