"""The pods that are placed while claims are filled, as pods that depend on them see them.

Nothing is counted until a pod asks that depends on others. Every zone of every pool is a domain, though no node is
there yet, and a claim counts as a node of its first option.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from gpuplane.autoscaler.asks import PodAsk
from gpuplane.autoscaler.claims import NodeClaimDraft, by_offering
from gpuplane.autoscaler.domain_check import DomainCheck
from gpuplane.autoscaler.domains import HOSTNAME, DomainCache
from gpuplane.autoscaler.existing import NodeFilling
from gpuplane.autoscaler.options import NodeOption, PoolOptions
from gpuplane.autoscaler.placed_pods import PlacedPods
from kubekit.scheduling import filters
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.podinfo import NodeFacts, PodInfo, PodTerm


class ClaimDomains:
    """LabelledCounts pods by domain; `cache` is None until a pod asks that depends on others.

    Args:
        claims: grows meanwhile.
        placed: the pods on the nodes that exist; those on other nodes do not count.
    """

    def __init__(
        self, pools: Sequence[PoolOptions], nodes: NodeFilling, claims: Iterable[NodeClaimDraft], placed: PlacedPods
    ) -> None:
        self.cache: DomainCache | None = None
        self._pools = pools
        self._nodes = nodes
        self._claims = claims
        self._placed = placed
        self._terms: set[PodTerm] = set()
        self._keys: set[str] = {HOSTNAME}  # labels by which pods that depend on others are placed

    def prepare(self, asks: Iterable[PodAsk]) -> None:
        """Count from now on what these pods depend on."""
        for ask in asks:
            if not ask.free:
                self._keys |= _keys_of(ask.wanted)
                if self.cache is None:
                    self.cache = self._with_domains()
                    self._put_placed(self.cache, self._placed.demanding)
                for term in _terms_of(ask.wanted):
                    if term not in self._terms:
                        self._terms.add(term)
                        self._put_placed(self.cache, self._placed.selected(term))

    def check(self, ask: PodAsk) -> DomainCheck | None:
        """Return the check of a pod at this moment; None for a free pod."""
        return None if ask.free or self.cache is None else DomainCheck(ask.wanted, self.cache)

    def takes(self, claim: NodeClaimDraft, option: NodeOption, ask: PodAsk, check: DomainCheck) -> bool:
        """Return whether the pods that are placed already admit this one on the claim."""
        node = self.cache.nodes.get(claim.name) if self.cache is not None else None
        if node is not None and ask.info.ports and filters.check_ports(ask.info.ports, node.ports) is not None:
            return False
        if node is None and ask.info.ports:
            taken = {port: 1 for daemon in option.daemons for port in daemon.ports}
            if filters.check_ports(ask.info.ports, taken) is not None:
                return False
        return check.admits({**option.facts.labels, HOSTNAME: claim.name})

    def keeps(self, claim: NodeClaimDraft, option: NodeOption) -> bool:
        """Return whether the pods of a claim stay in their domains, next to the same DaemonSets, if it becomes the
        option."""
        if self.cache is None:
            return True
        return option.daemons == claim.option.daemons and not self._differs(option, claim.option.facts)

    def place(self, claim: NodeClaimDraft, option: NodeOption, ask: PodAsk) -> None:
        """Count a pod on a claim, which is a node of the option."""
        if self.cache is None:
            return
        node = self.cache.nodes.get(claim.name)
        if node is None or node.facts is None or self._differs(option, node.facts):
            _put_claim(self.cache, claim.name, option)
        _put(self.cache, ask.info, claim.name)

    def _with_domains(self) -> DomainCache:
        cache = DomainCache()
        self._nodes.furnish(cache)
        for found in self._pools:
            for number, group in enumerate(by_offering(found.options)):
                facts = group[0].facts
                name = f"domain-{found.pool.name}-{number}"
                labels = {**facts.labels, HOSTNAME: name}
                cache.set_node(NodeFacts(name, labels, {}, facts.taints))
        for claim in self._claims:
            _put_claim(cache, claim.name, claim.option)
            for ask in claim.asks:
                _put(cache, ask.info, claim.name)
        return cache

    @staticmethod
    def _put_placed(cache: DomainCache, pods: Iterable[PodInfo]) -> None:
        for pod in pods:
            if pod.node_name in cache.nodes and pod.key not in cache.pods:
                cache.place(pod)

    def _differs(self, option: NodeOption, facts: NodeFacts) -> bool:
        """Return whether a node of the option is of another domain."""
        labels = option.facts.labels
        return any(labels.get(key) != facts.labels.get(key) for key in self._keys if key != HOSTNAME)


def pods_that_count(asks: Sequence[PodAsk]) -> frozenset[str]:
    """Return the keys of the free pods that other pods seek, or count when they are spread."""
    terms = {term for ask in asks if not ask.free for term in _terms_of(ask.wanted)}
    found = set()
    known: dict[tuple[str, frozenset[tuple[str, str]]], bool] = {}  # pods of one workload have equal labels
    for ask in asks if terms else ():
        if ask.free:
            labels = ask.info.namespace, frozenset(ask.info.labels.items())
            counts = known.get(labels)
            if counts is None:
                counts = any(term.selects(ask.info.namespace, ask.info.labels, {}) for term in terms)
                known[labels] = counts
            if counts:
                found.add(ask.key)
    return frozenset(found)


def _terms_of(info: PodInfo) -> Iterator[PodTerm]:
    """Yield the terms by which a pod depends on others."""
    affinity = info.affinity
    yield from affinity.pod_required
    yield from affinity.anti_required
    for _, term in (*affinity.pod_preferred, *affinity.anti_preferred):
        yield term
    for constraint in info.spread:
        yield constraint.term


def _keys_of(info: PodInfo) -> set[str]:
    """Return the labels of nodes by which a pod that depends on others is placed."""
    affinity = info.affinity
    keys = {term.topology_key for term in (*affinity.pod_required, *affinity.anti_required)}
    keys |= {term.topology_key for _, term in (*affinity.pod_preferred, *affinity.anti_preferred)}
    keys |= {constraint.topology_key for constraint in info.spread}
    keys |= {part.key for part in affinity.node_selector}
    return keys | {part.key for term in affinity.node_required or () for part in term.expressions}


def _put_claim(cache: SchedulerCache, name: str, option: NodeOption) -> None:
    labels = {**option.facts.labels, HOSTNAME: name}
    cache.set_node(msgspec.structs.replace(option.facts, name=name, labels=labels))
    for daemon in option.daemons:
        _put(cache, daemon, name, daemon.name)


def _put(cache: SchedulerCache, info: PodInfo, node: str, daemon: str = "") -> None:
    name = f"{daemon}-{node}" if daemon else info.name
    cache.place(msgspec.structs.replace(info, node_name=node, name=name))
