"""The needs of pods if their nodes were gone: places on other nodes, or nodes to buy. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec

from gpuplane.autoscaler.claims import has_room
from gpuplane.autoscaler.disruption.facts import DRIFTED, DisruptableNode, DisruptionPlan
from gpuplane.autoscaler.disruption.supply import PurchaseQuestion, RemovalWorld
from gpuplane.autoscaler.disruption.voluntary import DRIFT_POLICY, drifted
from gpuplane.autoscaler.nodeclaims import launch_options
from gpuplane.autoscaler.options import PoolLimits
from gpuplane.autoscaler.purchase import BoughtNode, decide_purchase

MOST_DRIFTED: Final = 20  # nodes that are tried in one pass; the others have their turn when these are replaced


class RemovalOutcome(msgspec.Struct, frozen=True, eq=False):
    """The answer for some nodes. `bought` hold their pods, and pods that wait anyway.

    `waiting` are pods (namespace/name) that would find no place, with the reasons. `unready` are nodes on their way
    that pods would move to: until these take pods, nothing is removed. `widen` adds the dearer options of a node to buy
    that hold its pods as well.
    """

    bought: tuple[BoughtNode, ...] = ()
    waiting: dict[str, tuple[str, ...]] = {}
    unready: tuple[str, ...] = ()
    widen: Callable[[BoughtNode], BoughtNode] = lambda node: node

    @property
    def is_possible(self) -> bool:
        """Return whether every pod would have a place that is ready or can be bought."""
        return not self.waiting and not self.unready


AskRemoval = Callable[[Collection[str]], RemovalOutcome]
"""Answers for nodes, by their names."""

ScreenRemoval = Callable[[DisruptableNode], str]
"""Returns why a node surely cannot go alone for less; empty if it has to be asked for."""


def ask_always(node: DisruptableNode) -> str:
    """Screen no node out."""
    return ""


def asking(world: RemovalWorld) -> AskRemoval:
    """Return the function that answers for nodes at one moment."""

    def ask(without: Collection[str]) -> RemovalOutcome:
        return removal_outcome(world.question(without))

    return ask


def removal_outcome(question: PurchaseQuestion) -> RemovalOutcome:
    """Return what the displaced pods of a question need."""
    answer = decide_purchase(question.asks, question.offers, question.nodes, question.placed)
    unready = {node.name for node in question.nodes if not node.initialized}
    used = {answer.placed[pod] for pod in question.displaced if pod in answer.placed}
    return RemovalOutcome(
        bought=tuple(node for node in answer.nodes if question.displaced & set(node.pods)),
        waiting={pod: why for pod, why in answer.waiting.items() if pod in question.displaced},
        unready=tuple(sorted(used & unready)),
        widen=lambda node: _widened(node, question),
    )


def _widened(node: BoughtNode, question: PurchaseQuestion) -> BoughtNode:
    """Return a node to buy with every option that its launch may take, whatever it costs."""
    offered = next(found for found in question.offers if found.pool.name == node.option.pool.name)
    asks = {ask.key: ask for ask in question.asks}
    roomy = [option for option in offered.options if has_room(option, node.requests, len(node.pods))]
    found = msgspec.structs.replace(offered, options=tuple(roomy))
    return msgspec.structs.replace(node, options=launch_options(node, found, asks, PoolLimits([offered.pool])))


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
