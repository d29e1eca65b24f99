"""Ranks the feasible nodes: kube-scheduler's default scores and weights.

Each score is brought to 0..100 over the feasible nodes, multiplied with its weight and summed. Extenders add theirs
(0..10 times 10 times their weight) to the same sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from kubekit.scheduling.cache import ClusterNode, SchedulerCache
from kubekit.scheduling.filters import tolerates
from kubekit.scheduling.podinfo import NodeFacts, PodInfo
from kubekit.scheduling.topology import spread_domains

BEST: Final = 100
_WEIGHT_TAINTS: Final = 3
_WEIGHT_AFFINITY: Final = 2
_WEIGHT_SPREAD: Final = 2
_WEIGHT_POD_AFFINITY: Final = 2
_IMAGE_MIN_BYTES: Final = 23 * 1024 * 1024
_IMAGE_MAX_BYTES: Final = 1000 * 1024 * 1024


def least_allocated(used: tuple[int, int], capacity: tuple[int, int]) -> int:
    """More free CPU and memory is better; resources a node lacks do not count. Both are (CPU, memory)."""
    total = count = 0
    for amount, whole in zip(used, capacity, strict=True):
        if whole:
            count += 1
            if amount < whole:
                total += (whole - amount) * BEST // whole
    return total // count if count else 0


def balanced(used: tuple[int, int], capacity: tuple[int, int]) -> int:
    """Nearer together the used fractions of CPU and memory is better. Both are (CPU, memory)."""
    (cpu, memory), (cpus, memories) = used, capacity
    if not cpus or not memories:
        return BEST
    deviation = abs(min(1.0, cpu / cpus) - min(1.0, memory / memories)) / 2
    return int((1 - deviation) * BEST)


def room(pod: PodInfo, node: ClusterNode, facts: NodeFacts) -> int:
    """`least_allocated` and `balanced` with the pod on the node."""
    used = (node.scored_cpu_milli + pod.scored_cpu_milli, node.scored_memory_bytes + pod.scored_memory_bytes)
    capacity = (facts.allocatable.get("cpu", 0), facts.allocatable.get("memory", 0))
    return least_allocated(used, capacity) + balanced(used, capacity)


def image_locality(pod: PodInfo, facts: NodeFacts, spread: Mapping[str, float]) -> int:
    """`spread`: for each image, the part of all nodes that has it."""
    have = dict(facts.images)
    total = sum(have[image] * spread.get(image, 0.0) for image in pod.images if image in have)
    highest = _IMAGE_MAX_BYTES * max(1, len(pod.images))
    return int(BEST * (min(max(total, _IMAGE_MIN_BYTES), highest) - _IMAGE_MIN_BYTES) / (highest - _IMAGE_MIN_BYTES))


def intolerable(pod: PodInfo, facts: NodeFacts) -> int:
    """Return how many PreferNoSchedule taints are not tolerated."""
    if not facts.taints:
        return 0
    return sum(t.effect == "PreferNoSchedule" and not tolerates(pod.tolerations, t) for t in facts.taints)


def preferred_nodes(pod: PodInfo, facts: NodeFacts) -> int:
    return sum(w for w, term in pod.affinity.node_preferred if term.matches(facts.name, facts.labels))


def normalised(raw: Sequence[float], reverse: bool = False) -> list[int]:
    """Scales to 0..100 by the highest; all zero stays zero (or is 100 in reverse)."""
    highest = max(raw, default=0)
    if highest <= 0:
        return [BEST if reverse else 0] * len(raw)
    scaled = [int(value * BEST / highest) for value in raw]
    return [BEST - value for value in scaled] if reverse else scaled


def _between(raw: Sequence[float]) -> list[int]:
    low, high = min(raw), max(raw)
    return [int(BEST * (value - low) / (high - low)) if high > low else 0 for value in raw]


def pod_affinity(pod: PodInfo, cache: SchedulerCache, nodes: Sequence[ClusterNode]) -> list[int] | None:
    """Preferred (anti)affinity of this pod, and what placed pods wish of it; None when no pod has a preference."""
    wishes: list[tuple[str, dict[str, int], int]] = []
    own = [(w, t) for w, t in pod.affinity.pod_preferred] + [(-w, t) for w, t in pod.affinity.anti_preferred]
    for weight, term in own:
        wishes.append((term.topology_key, cache.by_topology(cache.count(term), term.topology_key), weight))
    for (term, weight), carriers in cache.scored_terms.items():
        if cache.selects(term, pod):
            wishes.append((term.topology_key, cache.by_topology(carriers, term.topology_key), weight))
    if not wishes:
        return None
    raw = []
    for node in nodes:
        labels = node.facts.labels if node.facts is not None else {}
        raw.append(float(sum(w * sums.get(labels.get(key, ""), 0) for key, sums, w in wishes)))
    return _between(raw)


def topology_spread(pod: PodInfo, cache: SchedulerCache, nodes: list[ClusterNode]) -> list[int]:
    """Soft constraints: fewer matching pods in the node's domain is better; a node without the label is worst."""
    domains = spread_domains(pod, cache, nodes)
    raw: list[float | None] = []
    for node in nodes:
        labels = node.facts.labels if node.facts is not None else {}
        total = 0.0
        for constraint, sums in domains:
            value = labels.get(constraint.topology_key)
            if value is None:
                break
            total += sums[value] * math.log(len(sums) + 2) + (constraint.max_skew - 1)
        else:
            raw.append(total)
            continue
        raw.append(None)
    known = [value for value in raw if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    return [0 if value is None else BEST if not high else int(BEST * (high + low - value) / high) for value in raw]


def preferences(pod: PodInfo, cache: SchedulerCache, nodes: list[ClusterNode]) -> list[int]:
    """The weighted sum, for each feasible node, of what pods and nodes prefer: without room and images."""
    pairs = [(node, node.facts) for node in nodes if node.facts is not None]
    sums = [0] * len(pairs)

    def add(scores: Sequence[int], weight: int) -> None:
        for index, score in enumerate(scores):
            sums[index] += score * weight

    add(normalised([intolerable(pod, facts) for _, facts in pairs], reverse=True), _WEIGHT_TAINTS)
    if pod.affinity.node_preferred:
        add(normalised([preferred_nodes(pod, facts) for _, facts in pairs]), _WEIGHT_AFFINITY)
    if any(not c.hard for c in pod.spread):
        add(topology_spread(pod, cache, nodes), _WEIGHT_SPREAD)
    wished = pod_affinity(pod, cache, nodes)
    if wished is not None:
        add(wished, _WEIGHT_POD_AFFINITY)
    return sums


def totals(pod: PodInfo, cache: SchedulerCache, nodes: list[ClusterNode]) -> list[int]:
    """The weighted sum for each feasible node, in their order."""
    pairs = [(node, node.facts) for node in nodes if node.facts is not None]
    sums = [liked + room(pod, *pair) for liked, pair in zip(preferences(pod, cache, nodes), pairs, strict=True)]
    known = [dict(facts.images) for _, facts in pairs if facts.images]
    having = {image: sum(image in images for images in known) for image in pod.images}
    if any(having.values()):
        spread = {image: count / len(pairs) for image, count in having.items()}
        for index, (_, facts) in enumerate(pairs):
            sums[index] += image_locality(pod, facts, spread)
    return sums
