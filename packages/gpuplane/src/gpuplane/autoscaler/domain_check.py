"""The check of one pod against the pods that are placed, by the domains of topology keys.

Invariant (a test compares them): a check answers as the filters of `kubekit.scheduling.topology` do on the same cache,
for pods without preferences. The preferences of the pod that is checked count as requirements, those of placed pods do
not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpuplane.autoscaler.domains import DomainCache, EligibleNodes
from kubekit.scheduling.podinfo import Affinity, PodInfo, PodTerm, SpreadConstraint


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
        self._near = []
        for _, term in pod.affinity.pod_preferred:
            sums = cache.domain_sums(term, term.topology_key)
            if any(sums.values()) or not cache.selects(term, pod):  # else the pod is the first of its like
                self._near.append((term.topology_key, sums))
        away = (*pod.affinity.anti_required, *(term for _, term in pod.affinity.anti_preferred))
        self._apart = [(term.topology_key, cache.domain_sums(term, term.topology_key)) for term in away]
        self._apart += [
            (term.topology_key, cache.carriers(term)) for term in cache.anti_terms if cache.selects(term, pod)
        ]
        keys = tuple(one.topology_key for one in pod.spread)
        self._spread = [(one, _spread_sums(one, keys, pod, cache), int(one.selects_pod)) for one in pod.spread]
        self.levels = tuple(
            0 if len(sums) < one.min_domains else min(sums.values(), default=0) for one, sums, _ in self._spread
        )

    @property
    def seeks_others(self) -> bool:
        """Return whether a node that refuses the pod now may admit it once another pod is there."""
        return bool(self._affinity or self._near)

    def admits(self, labels: Mapping[str, str], keys: Collection[str] | None = None) -> bool:
        """Return whether a node with these labels admits the pod; with `keys` by these labels only."""
        for key, sums in self._affinity:
            value = labels.get(key)
            if (keys is None or key in keys) and (value is None or (not sums.get(value) and not self._first)):
                return False
        for key, sums in self._near:
            if (keys is None or key in keys) and not sums.get(labels.get(key, "")):
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
    eligible = EligibleNodes(
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
