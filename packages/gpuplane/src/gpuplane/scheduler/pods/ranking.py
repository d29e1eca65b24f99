"""The best node for pods that are decided alike, in a fraction of a millisecond on thousands of nodes.

Between two equal pods few nodes change. So each kind of pod has a rank for every node, and only the nodes that the
journals of the cache and the ledger name since then are ranked again.

Invariants:

- The answer is that of `decide.choose_node` (a property test compares them), or None: then ask `choose_node`.
- None for pods whose node depends on pods elsewhere (affinity, spreading), on volumes, quotas, nominations, preferred
  nodes or images, and where no node is feasible.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec

from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.feasibility import FITS, Answers
from gpuplane.scheduler.filtering import Filtering
from gpuplane.scheduler.pods.decide import DIGITS
from gpuplane.scheduler.pods.objects import ScheduledPod
from kubekit.errors import Retryable
from kubekit.scheduling.cache import ClusterNode, SchedulerCache
from kubekit.scheduling.check import FilterCheck
from kubekit.scheduling.podinfo import PodInfo
from kubekit.scheduling.scores import intolerable, room

_KINDS: Final = 256
_NEVER: Final = float("-inf")
_DISLIKED: Final = 1e9  # more than any policy's value
_ROOM: Final = 1e-6  # of a score for room, so that it counts only between nodes of equal value


class _KindRanks(msgspec.Struct):
    nodes: list[ClusterNode]  # the candidates that the ranks belong to
    position: dict[str, int]
    ranks: list[float]
    cache_revision: int
    ledger_revision: int
    policies: int
    usable: bool = True  # False: a node's images or replicas make the ranks incomplete


class NodeRanking:
    """Ranks the nodes of the cache for kinds of pods."""

    def __init__(self, cache: SchedulerCache, cluster: Cluster, filtering: Filtering) -> None:
        self._cache = cache
        self._cluster = cluster
        self._filtering = filtering
        self._kinds: OrderedDict[bytes, _KindRanks] = OrderedDict()

    def best(self, pod: ScheduledPod, within: Iterable[str] | None = None) -> str | None:
        """Return the best node for the pod; None if only `choose_node` can tell.

        Args:
            within: the only nodes that will do, None for all.
        """
        info = pod.info
        if info is None or not self.each_alone(pod):
            return None
        answers = self._filtering.answers(pod.request)
        known = self._current(pod, info, answers)
        if not known.usable or not known.ranks:
            return None
        if within is not None:
            places = [known.position[name] for name in within if name in known.position]
            at = max(places, key=lambda place: (known.ranks[place], -place), default=None)
            return None if at is None or known.ranks[at] == _NEVER else known.nodes[at].name
        most = max(known.ranks)
        return None if most == _NEVER else known.nodes[known.ranks.index(most)].name

    def each_alone(self, pod: ScheduledPod) -> bool:
        """Return whether what a node is worth for the pod depends on this node alone."""
        return pod.info is not None and bool(pod.kind) and self._decides(pod, pod.info)

    def _decides(self, pod: ScheduledPod, info: PodInfo) -> bool:
        """Return whether each node's rank depends on this node alone."""
        affinity, cache = info.affinity, self._cache
        if (
            pod.trouble
            or info.nominated
            or info.volumes
            or info.claims
            or info.spread
            or affinity.pinned
            or affinity.node_preferred
        ):
            return False
        if affinity.pod_required or affinity.pod_preferred or affinity.anti_required or affinity.anti_preferred:
            return False
        if self._filtering.nominations or cache.has_nominations:
            return False
        if any(cache.selects(term, info) for term in cache.anti_terms):
            return False
        if any(cache.selects(term, info) for term, _ in cache.scored_terms):
            return False
        try:
            return not pod.request or self._filtering.check(pod).unlimited
        except Retryable:
            return False

    def _current(self, pod: ScheduledPod, info: PodInfo, answers: Answers) -> _KindRanks:
        nodes, cache, ledger = self._cache.candidates(), self._cache, self._cluster.ledger
        known = self._kinds.get(pod.kind)
        changed: set[str] | None = None
        if known is not None and known.nodes is nodes and known.policies == self._filtering.policies_version:
            by_cache = cache.changed_since(known.cache_revision)
            by_ledger = ledger.changed_since(known.ledger_revision)
            if by_cache is not None and by_ledger is not None:
                changed = {*by_cache, *by_ledger}
        if known is None or changed is None:
            position = {node.name: at for at, node in enumerate(nodes)}
            known = _KindRanks(nodes, position, [_NEVER] * len(nodes), 0, 0, self._filtering.policies_version)
            self._kinds[pod.kind] = known
            if len(self._kinds) > _KINDS:
                self._kinds.popitem(last=False)
            changed = set(position)
            answers.rate_all()
            answers.prepare(list(position))
        self._kinds.move_to_end(pod.kind)
        known.cache_revision, known.ledger_revision = cache.revision, ledger.revision
        check = FilterCheck(info, cache)
        for name in changed:
            at = known.position.get(name)
            if at is not None:
                known.ranks[at] = self._rank(pod, info, nodes[at], check, answers)
                known.usable = known.usable and not self._is_special(pod, info, nodes[at])
        return known

    def _rank(self, pod: ScheduledPod, info: PodInfo, node: ClusterNode, check: FilterCheck, answers: Answers) -> float:
        facts = node.facts
        if facts is None or check(node) is not None:
            return _NEVER
        disliked = intolerable(info, facts) * _DISLIKED if facts.taints else 0.0
        if not pod.request:
            return round(answers.value(node.name), DIGITS) - disliked + room(info, node, facts) * _ROOM
        if node.name in self._cluster.not_ready or answers.lacking(node.name) is not FITS:
            return _NEVER
        return round(answers.value(node.name), DIGITS) - disliked

    def _is_special(self, pod: ScheduledPod, info: PodInfo, node: ClusterNode) -> bool:
        """Return whether the node's images or replicas count in a way that ranks do not have."""
        if pod.request:
            state = self._cluster.ledger.node(node.name)
            return state is not None and state.by_count and pod.request.by_count
        return node.facts is not None and any(image in info.images for image, _ in node.facts.images)
