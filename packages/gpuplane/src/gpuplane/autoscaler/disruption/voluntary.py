"""The nodes that go of the autoscaler's own accord, without a replacement: empty and drifted ones. Pure.

Invariants (hypothesis holds them in packages/gpuplane/tests/autoscaler/disruption/test_voluntary.py):

- No plan has more nodes of a pool than its budgets have room for, for the plan's reason.
- No plan has a node that is away, not initialized, or that stays for a reason of its own.
- Equal facts give equal plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuplane.api.karpenter import PoolDisruption
from gpuplane.autoscaler.disruption.facts import DRIFTED, EMPTY, DisruptableNode, DisruptionPlan

TTL_POLICY = "ttlSecondsAfterEmpty"
EMPTY_POLICY = "WhenEmpty"
DRIFT_POLICY = "Drift"


def candidates(nodes: Iterable[DisruptableNode]) -> list[DisruptableNode]:
    """Return the nodes that may be disrupted at all, by name."""
    found = (node for node in nodes if node.initialized is not None and not node.away and not node.stays)
    return sorted(found, key=lambda node: node.claim)


def within_room(nodes: Iterable[DisruptableNode], room: Mapping[str, float]) -> Iterator[DisruptableNode]:
    """Yield nodes in their order, as many of each pool as there is room for; a pool without an entry has none."""
    left = dict(room)
    for node in nodes:
        if left.get(node.pool, 0.0) >= 1.0:
            left[node.pool] -= 1.0
            yield node


def plan_ttl(
    nodes: Sequence[DisruptableNode], pools: Mapping[str, PoolDisruption], room: Mapping[str, float], now: float
) -> DisruptionPlan | None:
    """Plan the end of the nodes that have been empty for `ttlSecondsAfterEmpty`, all of them together."""
    due = [node for node in candidates(nodes) if not node.stays_for_pods and _is_due(node, pools, now)]
    chosen = tuple(within_room(due, room))
    return DisruptionPlan(EMPTY, TTL_POLICY, chosen) if chosen else None


def plan_empty(
    nodes: Sequence[DisruptableNode], pools: Mapping[str, PoolDisruption], room: Mapping[str, float]
) -> DisruptionPlan | None:
    """Plan the end of consolidatable nodes that no pod needs, all of them together."""
    due = [
        node
        for node in candidates(nodes)
        if node.is_empty and node.consolidatable and not node.held and not node.stays_for_pods
        if node.pool in pools and pools[node.pool].policy
    ]
    chosen = tuple(within_room(due, room))
    return DisruptionPlan(EMPTY, EMPTY_POLICY, chosen, validate=True) if chosen else None


def plan_drifted_empty(nodes: Sequence[DisruptableNode], room: Mapping[str, float]) -> DisruptionPlan | None:
    """Plan the end of drifted nodes that no pod needs, all of them together."""
    chosen = tuple(within_room((node for node in drifted(nodes) if node.is_empty), room))
    return DisruptionPlan(DRIFTED, DRIFT_POLICY, chosen, detail=_reasons(chosen)) if chosen else None


def drifted(nodes: Iterable[DisruptableNode]) -> list[DisruptableNode]:
    """Return the drifted nodes that may go, those that drifted first at the front.

    A node whose drain has a deadline goes though its pods hold it.
    """
    found = (node for node in candidates(nodes) if node.drift and (node.bounded or not node.stays_for_pods))
    return sorted(found, key=lambda node: (node.drifted, node.claim))


def next_ttl(nodes: Iterable[DisruptableNode], pools: Mapping[str, PoolDisruption], now: float) -> float | None:
    """Return the seconds until the next node has been empty for long enough; None if no node is stamped."""
    times = [
        node.emptied + after - now
        for node in candidates(nodes)
        if node.emptied is not None and (after := _ttl(node, pools)) is not None
    ]
    return min((time for time in times if time > 0), default=None)


def _is_due(node: DisruptableNode, pools: Mapping[str, PoolDisruption], now: float) -> bool:
    after = _ttl(node, pools)
    return after is not None and node.emptied is not None and not node.pods and now >= node.emptied + after


def _ttl(node: DisruptableNode, pools: Mapping[str, PoolDisruption]) -> float | None:
    return pools[node.pool].empty_after if node.pool in pools else None


def _reasons(nodes: Iterable[DisruptableNode]) -> str:
    return ", ".join(sorted({node.drift for node in nodes}))
