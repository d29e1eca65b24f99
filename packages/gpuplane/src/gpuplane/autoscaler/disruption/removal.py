"""The needs of pods if their nodes were gone: places on other nodes, or nodes to buy. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec

from gpuplane.autoscaler.claims import has_room, holds_all
from gpuplane.autoscaler.disruption.facts import DRIFTED, DisruptableNode, DisruptionPlan
from gpuplane.autoscaler.disruption.supply import PurchaseQuestion, RemovalWorld
from gpuplane.autoscaler.disruption.voluntary import DRIFT_POLICY, drifted
from gpuplane.autoscaler.existing import add_requests
from gpuplane.autoscaler.nodeclaims import launch_options, own_labels
from gpuplane.autoscaler.options import PoolLimits
from gpuplane.autoscaler.purchase import BoughtNode, decide_purchase
from kubekit.scheduling.podinfo import Requests

MOST_DRIFTED: Final = 20  # nodes that are tried in one pass; the others have their turn when these are replaced


class RemovalOutcome(msgspec.Struct, frozen=True, eq=False):
    """The answer for some nodes. `bought` hold their pods, and pods that wait anyway.

    `waiting` are pods (namespace/name) that would find no place, with the reasons. `unready` are nodes on their way
    that pods would move to: until these take pods, nothing is removed. `widen` adds the dearer options of a node to buy
    that hold its pods as well. `together` returns the one node that holds the pods of several, with every option;
    None if there is none, or if pods depend on others.
    """

    bought: tuple[BoughtNode, ...] = ()
    waiting: dict[str, tuple[str, ...]] = {}
    unready: tuple[str, ...] = ()
    widen: Callable[[BoughtNode], BoughtNode] = lambda node: node
    together: Callable[[Sequence[BoughtNode]], BoughtNode | None] = lambda nodes: None

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
        together=lambda nodes: _together(nodes, question),
    )


def _widened(node: BoughtNode, question: PurchaseQuestion) -> BoughtNode:
    """Return a node to buy with every option that its launch may take, whatever it costs."""
    offered = next(found for found in question.offers if found.pool.name == node.option.pool.name)
    asks = {ask.key: ask for ask in question.asks}
    roomy = [option for option in offered.options if has_room(option, node.requests, len(node.pods))]
    found = msgspec.structs.replace(offered, options=tuple(roomy))
    return msgspec.structs.replace(
        node, options=launch_options(node, found, asks, PoolLimits([offered.pool]), most=None)
    )


def _together(nodes: Sequence[BoughtNode], question: PurchaseQuestion) -> BoughtNode | None:
    """Return the cheapest node that holds the pods of several nodes of one pool, with the options that do as well."""
    if len({node.option.pool.name for node in nodes}) > 1:
        return None
    offered = next(found for found in question.offers if found.pool.name == nodes[0].option.pool.name)
    given_up = {pod: words for node in nodes for pod, words in node.given_up.items()}
    asks = {ask.key: ask for ask in question.asks}
    keys = tuple(key for node in nodes for key in node.pods)
    pods = [asks[key].relaxed(len(given_up.get(key, ()))) for key in keys]
    if not all(ask.free for ask in pods):
        return None
    limits = PoolLimits([offered.pool])
    holding = [one for one in offered.options if holds_all(one, pods) and not limits.lacking(one)]
    if not holding:
        return None
    options = tuple(one for one in holding if own_labels(one) == own_labels(holding[0]))
    requests: Requests = {}
    for node in nodes:
        requests = add_requests(requests, node.requests)
    return BoughtNode(holding[0], keys, options, requests, given_up)


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
