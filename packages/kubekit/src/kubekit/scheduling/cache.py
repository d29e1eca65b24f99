"""The pods and resources on each node, counted incrementally: a change never scans the cluster.

Invariants (tests compare with a cache built from scratch):
- a placed pod (bound, or assumed because its binding is under way) is counted on exactly one node;
- a node that is gone but still has pods stays, without facts, and is no candidate;
- per-selector counts exist for the selectors that some recent pod asked about and are then kept up to date.
"""

from __future__ import annotations

import contextlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterator
from typing import Final, TypeVar

from kubekit.scheduling.devices.store import DeviceStore
from kubekit.scheduling.podinfo import NodeFacts, PodInfo, PodTerm, Requests
from kubekit.scheduling.volumes.store import VolumeStore

_COUNTED_TERMS: Final = 256
_JOURNAL: Final = 65_536
PerNode = dict[str, int]
K = TypeVar("K")


class ClusterNode:
    """One node and what is placed on it. `requested` and the scored sums cover `pods` only, not `nominated`."""

    __slots__ = (
        "facts",
        "name",
        "nominated",
        "pods",
        "ports",
        "requested",
        "scored_cpu_milli",
        "scored_memory_bytes",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.facts: NodeFacts | None = None
        self.pods: dict[str, PodInfo] = {}
        self.nominated: dict[str, PodInfo] = {}
        self.requested: Requests = {}
        self.scored_cpu_milli = 0
        self.scored_memory_bytes = 0
        self.ports: dict[tuple[str, str, int], int] = {}

    def count(self, pod: PodInfo, sign: int) -> None:
        """Adds (sign 1) or takes back (sign -1) what one pod holds."""
        requested = self.requested
        for name, amount in pod.requests.items():
            left = requested.get(name, 0) + sign * amount
            if left:
                requested[name] = left
            else:
                requested.pop(name, None)
        self.scored_cpu_milli += sign * pod.scored_cpu_milli
        self.scored_memory_bytes += sign * pod.scored_memory_bytes
        for port in pod.ports:
            _bump(self.ports, port, sign)


def _bump(counts: dict[K, int], key: K, sign: int) -> None:
    left = counts.get(key, 0) + sign
    if left:
        counts[key] = left
    else:
        counts.pop(key, None)


class SchedulerCache:
    """Nodes, the pods placed on them, and the counts that (anti)affinity and spreading need.

    Args:
        hard_affinity_weight: of a placed pod's required affinity term in the scores of others.
    """

    def __init__(self, hard_affinity_weight: int = 1) -> None:
        self._hard_affinity_weight = hard_affinity_weight
        self.nodes: dict[str, ClusterNode] = {}
        self.pods: dict[str, PodInfo] = {}
        self.counted: Callable[[PodInfo, int], None] | None = (
            None  # called with 1 or -1 for each pod, placed or removed
        )
        self.node_count = 0  # of those that exist
        self.priorities: Counter[int] = Counter()  # of placed pods
        self._nominations = 0
        self._journal: list[str] = []  # the node of each change that a decision may depend on, "" for all nodes
        self._dropped = 0  # entries of the journal that are gone
        self.namespaces: dict[str, dict[str, str]] = {}
        self.volumes = VolumeStore()
        self.devices = DeviceStore()
        # Terms that placed pods carry, with the nodes of the carriers.
        self.anti_terms: dict[PodTerm, PerNode] = {}
        self.scored_terms: dict[tuple[PodTerm, int], PerNode] = {}
        self._counted: OrderedDict[tuple[PodTerm, bool], PerNode] = OrderedDict()
        self._candidates: list[ClusterNode] | None = None

    # -- nodes ---------------------------------------------------------------------------------------------------
    def set_node(self, facts: NodeFacts) -> None:
        node = self._state(facts.name)
        if node.facts == facts:
            return
        self._changed(facts.name)
        if node.facts is None:
            self._candidates = None
            self.node_count += 1
        node.facts = facts

    def remove_node(self, name: str) -> None:
        node = self.nodes.get(name)
        if node is None or node.facts is None:
            return
        node.facts = None
        self._changed(name)
        self.node_count -= 1
        self._candidates = None
        self._drop_if_empty(node)

    def candidates(self) -> list[ClusterNode]:
        """All nodes that exist, in a stable order."""
        if self._candidates is None:
            self._candidates = [node for node in self.nodes.values() if node.facts is not None]
        return self._candidates

    def _state(self, name: str) -> ClusterNode:
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = ClusterNode(name)
        return node

    def _drop_if_empty(self, node: ClusterNode) -> None:
        if node.facts is None and not node.pods and not node.nominated:
            self.nodes.pop(node.name, None)

    # -- pods ----------------------------------------------------------------------------------------------------
    def place(self, pod: PodInfo) -> None:
        """Counts a pod on its node (`node_name`); replaces what was known of it."""
        known = self.pods.get(pod.key)
        if known == pod:
            return
        if known is not None:
            self.remove(known.key)
        self.pods[pod.key] = pod
        self._apply(pod, 1)

    def remove(self, key: str) -> PodInfo | None:
        """Forgets a placed pod; answers what was known of it."""
        pod = self.pods.pop(key, None)
        if pod is not None:
            self._apply(pod, -1)
        return pod

    def _apply(self, pod: PodInfo, sign: int) -> None:
        node = self._state(pod.node_name)
        self._changed(pod.node_name)
        if sign > 0:
            node.pods[pod.key] = pod
        else:
            node.pods.pop(pod.key, None)
        node.count(pod, sign)
        if self.counted is not None:
            self.counted(pod, sign)
        if pod.volumes:
            self.volumes.count(pod.namespace, pod.volumes, sign)
        self.priorities[pod.priority] += sign
        if not self.priorities[pod.priority]:
            del self.priorities[pod.priority]
        for term in pod.affinity.anti_required:
            self._count_carrier(self.anti_terms, term, pod.node_name, sign)
        for scored in scored_terms(pod, self._hard_affinity_weight):
            self._count_carrier(self.scored_terms, scored, pod.node_name, sign)
        for (counted, live_only), per_node in self._counted.items():
            if not (live_only and pod.terminating) and self.selects(counted, pod):
                _bump(per_node, pod.node_name, sign)
        if sign < 0:
            self._drop_if_empty(node)

    @staticmethod
    def _count_carrier(carriers: dict[K, PerNode], term: K, node: str, sign: int) -> None:
        per_node = carriers.setdefault(term, {})
        _bump(per_node, node, sign)
        if not per_node:
            del carriers[term]

    # -- nominations: pods that preempted others and wait for them to go ------------------------------------------
    def nominate(self, pod: PodInfo, node_name: str) -> None:
        self._changed(node_name)
        nominated = self._state(node_name).nominated
        self._nominations += pod.key not in nominated
        nominated[pod.key] = pod

    def withdraw(self, key: str, node_name: str) -> PodInfo | None:
        """Keep room for the pod no longer; answers what was known of it."""
        node = self.nodes.get(node_name)
        if node is None:
            return None
        self._changed(node_name)
        pod = node.nominated.pop(key, None)
        self._nominations -= pod is not None
        self._drop_if_empty(node)
        return pod

    def nominated_pods(self) -> list[PodInfo]:
        """Return the pods that wait on a node for others to leave."""
        if not self._nominations:
            return []
        return [pod for node in self.nodes.values() for pod in node.nominated.values()]

    @contextlib.contextmanager
    def nominations_aside(self, keys: Container[str]) -> Iterator[None]:
        """Keep no room for these pods for as long as the context lasts."""
        nodes = self.nodes.values() if self._nominations else ()
        gone = [(pod, node.name) for node in nodes for key, pod in node.nominated.items() if key in keys]
        for pod, node_name in gone:
            self.withdraw(pod.key, node_name)
        try:
            yield
        finally:
            for pod, node_name in gone:
                self.nominate(pod, node_name)

    @property
    def has_nominations(self) -> bool:
        """Return whether a pod waits on a node for others to leave."""
        return self._nominations > 0

    # -- followers -----------------------------------------------------------------------------------------------
    @property
    def revision(self) -> int:
        """Return the number of changes so far that a decision may depend on."""
        return self._dropped + len(self._journal)

    def changed_since(self, revision: int) -> list[str] | None:
        """Return the nodes that changed after `revision`, with repetitions; None when `revision` is too old."""
        return None if revision < self._dropped else self._journal[revision - self._dropped :]

    def touch(self, name: str) -> None:
        """Note a change of a node that is not in its facts."""
        self._changed(name)

    def _changed(self, name: str) -> None:
        self._journal.append(name)
        if len(self._journal) > _JOURNAL:
            half = _JOURNAL // 2
            del self._journal[:half]
            self._dropped += half

    # -- counts --------------------------------------------------------------------------------------------------
    def set_namespace(self, name: str, labels: dict[str, str] | None) -> None:
        """Labels of a namespace (None: it is gone). Counts that depend on namespace labels start again."""
        before = self.namespaces.get(name)
        if labels is None:
            self.namespaces.pop(name, None)
        else:
            self.namespaces[name] = labels
        if before != labels:
            self._changed("")
            for counted in [c for c in self._counted if c[0].namespace_selector is not None]:
                del self._counted[counted]

    def selects(self, term: PodTerm, pod: PodInfo) -> bool:
        """Return whether a term is about a pod, by its labels and its namespace's."""
        return term.selects(pod.namespace, pod.labels, self.namespaces.get(pod.namespace, {}))

    def count(self, term: PodTerm, live_only: bool = False) -> PerNode:
        """Return how many placed pods a term selects, by node (nodes with none are absent); shared, do not change."""
        key = (term, live_only)
        per_node = self._counted.get(key)
        if per_node is not None:
            self._counted.move_to_end(key)
            return per_node
        per_node = {}
        for pod in self.pods.values():
            if not (live_only and pod.terminating) and self.selects(term, pod):
                _bump(per_node, pod.node_name, 1)
        self._counted[key] = per_node
        if len(self._counted) > _COUNTED_TERMS:
            self._counted.popitem(last=False)
        return per_node

    def by_topology(self, per_node: PerNode, topology_key: str) -> dict[str, int]:
        """Sums counts by the value of a node label; nodes without it do not count."""
        sums: dict[str, int] = {}
        for name, count in per_node.items():
            facts = self.nodes[name].facts
            value = None if facts is None else facts.labels.get(topology_key)
            if value is not None:
                sums[value] = sums.get(value, 0) + count
        return sums


def scored_terms(pod: PodInfo, hard_weight: int) -> Iterator[tuple[PodTerm, int]]:
    """Return a placed pod's preferences for others near it: term and weight."""
    if hard_weight:
        for term in pod.affinity.pod_required:
            yield term, hard_weight
    for weight, term in pod.affinity.pod_preferred:
        yield term, weight
    for weight, term in pod.affinity.anti_preferred:
        yield term, -weight
