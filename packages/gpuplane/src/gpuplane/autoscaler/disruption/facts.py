"""The facts about nodes that may be disrupted, and what is decided about them. Times are seconds since 1970."""

from __future__ import annotations

from typing import Final

import msgspec

EMPTY: Final = "Empty"
DRIFTED: Final = "Drifted"
UNDERUTILIZED: Final = "Underutilized"
UNHEALTHY: Final = "Unhealthy"
REASONS: Final = (EMPTY, DRIFTED, UNDERUTILIZED, UNHEALTHY)
"""The reasons that budgets know."""


class PodWeight(msgspec.Struct, frozen=True):
    """A pod on a node that may be disrupted. `cost` is that of its eviction, `holds` is why it may not be evicted."""

    name: str  # namespace/name
    cost: float = 1.0
    holds: str = ""


class DisruptableNode(msgspec.Struct, frozen=True):
    """A claim with its node.

    `pods` are those that need another node when this one goes. `initialized` is since when the node takes pods, None
    for not yet. `away`: it is not ready, or it ends already. `stays` is why nothing may be done with it of its own
    accord, empty if it may be disrupted; `held` is the same for consolidation only. `emptied` is the time stamp of
    ttlSecondsAfterEmpty. `price` is in dollars an hour, None for unknown. `bounded`: its drain has a deadline, so drift
    may take it though its pods hold it (`stays_for_pods`).
    """

    claim: str
    node: str
    pool: str
    created: float = 0.0
    initialized: float | None = None
    away: bool = False
    stays: str = ""
    stays_for_pods: str = ""
    held: str = ""
    bounded: bool = False
    pods: tuple[PodWeight, ...] = ()
    consolidatable: bool = False
    emptied: float | None = None
    drift: str = ""
    drifted: float = 0.0
    price: float | None = None
    machine: str = ""
    capacity_type: str = ""

    @property
    def cost(self) -> float:
        """Return what the disruption of the node costs: 1, and the cost of each pod that costs anything."""
        return 1.0 + sum(pod.cost for pod in self.pods if pod.cost > 0)

    @property
    def is_empty(self) -> bool:
        """Return whether no pod would be missed; one with a cost of nothing or less is not."""
        return self.cost <= 1.0


class DisruptionPlan(msgspec.Struct, frozen=True):
    """Nodes to remove for a reason. `policy` names the decision, for events and metrics. `validate`: decide twice."""

    reason: str
    policy: str
    nodes: tuple[DisruptableNode, ...]
    detail: str = ""
    validate: bool = False
