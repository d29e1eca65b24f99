"""The needs of pods if their nodes were gone: places on other nodes, or nodes to buy. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec

from gpuplane.autoscaler.disruption.facts import DRIFTED, DisruptableNode, DisruptionPlan
from gpuplane.autoscaler.disruption.supply import PurchaseQuestion
from gpuplane.autoscaler.disruption.voluntary import DRIFT_POLICY, drifted
from gpuplane.autoscaler.purchase import BoughtNode, decide_purchase

MOST_DRIFTED: Final = 20  # nodes that are tried in one pass; the others have their turn when these are replaced


class RemovalOutcome(msgspec.Struct, frozen=True, eq=False):
    """The answer for some nodes. `bought` hold their pods, and pods that wait anyway.

    `waiting` are pods (namespace/name) that would find no place, with the reasons. `unready` are nodes on their way
    that pods would move to: until these take pods, nothing is removed.
    """

    bought: tuple[BoughtNode, ...] = ()
    waiting: dict[str, tuple[str, ...]] = {}
    unready: tuple[str, ...] = ()

    @property
    def is_possible(self) -> bool:
        """Return whether every pod would have a place that is ready or can be bought."""
        return not self.waiting and not self.unready


AskRemoval = Callable[[Collection[str]], RemovalOutcome]
"""Answers for nodes, by their names."""


def removal_outcome(question: PurchaseQuestion) -> RemovalOutcome:
    """Return what the displaced pods of a question need."""
    answer = decide_purchase(question.asks, question.offers, question.nodes)
    unready = {node.name for node in question.nodes if not node.initialized}
    used = {answer.placed[pod] for pod in question.displaced if pod in answer.placed}
    return RemovalOutcome(
        bought=tuple(node for node in answer.nodes if question.displaced & set(node.pods)),
        waiting={pod: why for pod, why in answer.waiting.items() if pod in question.displaced},
        unready=tuple(sorted(used & unready)),
    )


def plan_drifted(
    nodes: Sequence[DisruptableNode], room: Mapping[str, float], ask: AskRemoval
) -> tuple[DisruptionPlan, tuple[BoughtNode, ...]] | None:
    """Plan the replacement of one drifted node, the first whose pods have a place, with the nodes to buy before."""
    full = [node for node in drifted(nodes) if not node.is_empty and room.get(node.pool, 0.0) >= 1.0]
    for node in full[:MOST_DRIFTED]:
        outcome = ask([node.node])
        if outcome.is_possible:
            return DisruptionPlan(DRIFTED, DRIFT_POLICY, (node,), detail=node.drift), outcome.bought
    return None
