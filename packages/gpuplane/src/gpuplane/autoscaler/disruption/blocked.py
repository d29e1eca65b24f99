"""Why a node stays that would go otherwise: events `DisruptionBlocked` and `Unconsolidatable` on its claim.

An event names the pod, the PodDisruptionBudget or the budget of the pool that holds the node. It is written when the
reason changes and every 15 min, so `kubectl describe nodeclaim` has it at any time and no pass floods the API server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from gpuplane.api.karpenter import PoolDisruption
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.autoscaler.disruption.budgets import PoolCount, tightest_budget
from gpuplane.autoscaler.disruption.facts import DRIFTED, EMPTY, UNDERUTILIZED, DisruptableNode
from gpuplane.autoscaler.repeated_events import RepeatedEvents
from kubekit.kube import Clock, EventRecorder

BLOCKED: Final = "DisruptionBlocked"
UNCONSOLIDATABLE: Final = "Unconsolidatable"
REPEAT_SECONDS: Final = 900.0
_NOT_EMPTY_ONLY: Final = ("", "WhenEmpty")


def causes(node: DisruptableNode, rules: PoolDisruption) -> Iterator[str]:
    """Yield the reasons for which a node would be disrupted if nothing held it."""
    if node.drift:
        yield DRIFTED
    by_policy = node.consolidatable and bool(rules.policy)
    if node.is_empty and (by_policy or node.emptied is not None):
        yield EMPTY
    if not node.is_empty and by_policy and rules.policy not in _NOT_EMPTY_ONLY:
        yield UNDERUTILIZED


def why_blocked(
    node: DisruptableNode,
    rules: PoolDisruption,
    count: PoolCount,
    room: Mapping[str, Mapping[str, float]],
    now: float,
) -> str:
    """Return why a node is not disrupted though there is a cause; empty if nothing holds it, or there is no cause.

    Args:
        count: the nodes of its pool.
        room: reason -> pool -> how many more nodes may go.
    """
    found = list(causes(node, rules))
    if not found or node.away or node.initialized is None:
        return ""
    if node.stays:
        return node.stays
    if node.stays_for_pods and not (node.bounded and DRIFTED in found):
        return node.stays_for_pods
    if any(room.get(reason, {}).get(node.pool, 0.0) >= 1.0 for reason in found):
        return ""
    budget = tightest_budget(rules.budgets, found[0], count.nodes, now)
    if budget is None:
        return f"another node of the pool {node.pool} is being replaced"
    when = f' with the schedule "{budget.schedule}"' if budget.schedule else ""
    return (
        f"the budget nodes={budget.nodes}{when} of the pool {node.pool} admits no more nodes for {found[0]}: "
        f"{count.away} of {count.nodes} are away"
    )


class BlockedEvents:
    """The writer of these events."""

    def __init__(self, recorder: EventRecorder, clock: Clock) -> None:
        self._events = RepeatedEvents(recorder, clock, REPEAT_SECONDS)

    def report(self, event: str, why: Mapping[str, str], claim: Callable[[str], NodeClaim | None]) -> None:
        """Write an event for each claim, unless it has been written lately; `why` maps claims to messages."""
        for name, message in why.items():
            found = claim(name) if message else None
            if found is not None:
                self._events.report(found, "Normal", event, message)


def blocked_nodes(
    nodes: Iterable[DisruptableNode],
    rules: Mapping[str, PoolDisruption],
    counts: Mapping[str, PoolCount],
    room: Mapping[str, Mapping[str, float]],
    now: float,
) -> dict[str, str]:
    """Return claim -> why it is blocked, for those that are."""
    found = {
        node.claim: why_blocked(node, rules[node.pool], counts.get(node.pool, PoolCount()), room, now)
        for node in nodes
        if node.pool in rules
    }
    return {claim: why for claim, why in found.items() if why}
