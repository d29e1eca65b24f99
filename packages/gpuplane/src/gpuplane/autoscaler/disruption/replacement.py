"""Replacements: the nodes that cost less than those that they replace, and what their launches may take. Pure.

A replacement may be any offer that costs less than the nodes that go. Several nodes in place of others are
several launches, so the set saves a part of the price at least, and each node launches only those offers with which the
set saves that much whatever the cloud has.

Spot nodes alone are replaced by spot only with the gate SpotToSpotConsolidation, and by one node at most. In place of a
single spot node the cloud chooses among the cheapest types only, and there are as many as it needs for its choice: the
node that it launches is one of them, so it is not replaced again for a little less.

Invariants (packages/gpuplane/tests/autoscaler/disruption/test_replacement.py):

- At the dearest offers that its launches may take, a replacement costs less than the nodes that go.
- A type that goes is launched alone only for less than the cheapest of its nodes that go.
- Without the gate, spot nodes alone are never replaced by spot nodes.
- The spot node that replaces a spot node is not replaced by another one, whichever of its offers the cloud launches.
- A pool's minValues hold for what a launch may take.

Source: the price rule of Karpenter 1.14 for one node, and its rule for spot nodes; several nodes are ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import msgspec

from gpuplane.autoscaler.catalogue import SPOT
from gpuplane.autoscaler.claims import MOST_OPTIONS
from gpuplane.autoscaler.disruption.facts import DisruptableNode
from gpuplane.autoscaler.disruption.removal import RemovalOutcome
from gpuplane.autoscaler.options import NodeOption
from gpuplane.autoscaler.purchase import BoughtNode
from gpuplane.autoscaler.requirements import lacking_values, pool_conditions
from gpuplane.autoscaler.settings import SPOT_TO_SPOT

TOO_DEAR: Final = "no node that costs less holds its pods"
LEAST_SAVED: Final = 0.02  # part of the price that several replacements save, since all of them have to start
LEAST_SAVED_BY_MORE: Final = 0.2  # the same where they are more than the nodes that go
LEAST_SPOT_TYPES: Final = 15  # cheaper than a spot node, for a spot node in its place
GATE_CLOSED: Final = f"cheaper spot nodes hold its pods, but spot replaces spot only with {SPOT_TO_SPOT}=true"
SEVERAL_SPOT: Final = "spot nodes are replaced by one spot node at most, and no cheaper one holds its pods"


def choose_replacements(
    outcome: RemovalOutcome, nodes: Sequence[DisruptableNode], *, spot_to_spot: bool
) -> tuple[BoughtNode, ...] | str:
    """Return the nodes to buy in place of `nodes`, with the options of their launches; or why there are none.

    Args:
        outcome: what the pods of `nodes` need, some nodes at least.
        spot_to_spot: whether the gate is open.
    """
    found = cheaper_nodes(outcome.bought, nodes)
    if spot_to_spot and len(found) > 1 and _is_spot_again(found, nodes):
        # A set could move down the prices from pass to pass, each time with all of its pods.
        one = outcome.together(found)
        found = cheaper_nodes([one], nodes) if one is not None else ()
        if not found:
            return SEVERAL_SPOT
    why = _why_not(found, nodes, spot_to_spot=spot_to_spot)
    if not why:
        found = cheaper_nodes([outcome.widen(node) for node in found], nodes)
        why = _why_not(found, nodes, spot_to_spot=spot_to_spot)
    if why:
        return why
    going = nodes[0] if len(nodes) == 1 and _is_spot_again(found, nodes) else None
    chosen = []
    for node in found:
        kept = _cut(node, going)
        if isinstance(kept, str):
            return kept
        chosen.append(kept)
    return tuple(chosen)


def cheaper_nodes(bought: Sequence[BoughtNode], nodes: Sequence[DisruptableNode]) -> tuple[BoughtNode, ...]:
    """Return the nodes to buy with only those options at which they cost less than `nodes`; none if they do not."""
    if len(bought) == 1:
        return _one(bought[0], nodes)
    return _several(bought, nodes)


def price_limits(nodes: Sequence[DisruptableNode]) -> tuple[float, dict[str, float]]:
    """Return what one replacement of nodes must cost less than, and the same for each type that goes."""
    limit = sum(one.price or 0.0 for one in nodes)
    own = {one.machine: min(o.price or 0.0 for o in nodes if o.machine == one.machine) for one in nodes}
    return limit, {machine: min(limit, price) for machine, price in own.items()}


def _one(node: BoughtNode, nodes: Sequence[DisruptableNode]) -> tuple[BoughtNode, ...]:
    limit, own = price_limits(nodes)
    options = [one for one in (node.option, *node.options) if one.price < own.get(one.machine.name, limit)]
    found = _launched(node, options)
    return (found,) if found is not None else ()


def _several(bought: Sequence[BoughtNode], nodes: Sequence[DisruptableNode]) -> tuple[BoughtNode, ...]:
    least_saved = LEAST_SAVED_BY_MORE if len(bought) > len(nodes) else LEAST_SAVED
    limit = sum(one.price or 0.0 for one in nodes) * (1 - least_saved)
    price = sum(node.option.price for node in bought)
    if price > limit:
        return ()
    made = []
    for node in bought:
        most = node.option.price * limit / price
        options = [one for one in (node.option, *node.options) if one is node.option or one.price <= most]
        found = _launched(node, options)
        if found is None:
            return ()
        made.append(found)
    return tuple(made)


def _launched(node: BoughtNode, options: Sequence[NodeOption]) -> BoughtNode | None:
    """Return a node to buy with some of its options, only spot if there is spot; None without any."""
    if not options:
        return None
    # NB: a launch tries spot first, and must not fall back on an on-demand node that costs more.
    spot = [one for one in options if one.capacity_type == SPOT]
    options = list(dict.fromkeys(spot or options))
    options.sort(key=lambda one: (one.price, one.machine.name, one.zone))
    return msgspec.structs.replace(node, option=options[0], options=tuple(options))


def _why_not(found: Sequence[BoughtNode], nodes: Sequence[DisruptableNode], *, spot_to_spot: bool) -> str:
    """Return why cheaper nodes do not replace others; empty if they may."""
    if not found:
        return TOO_DEAR
    if not _is_spot_again(found, nodes):
        return ""
    if not spot_to_spot:
        return GATE_CLOSED
    return SEVERAL_SPOT if len(found) > 1 else ""


def _is_spot_again(found: Sequence[BoughtNode], nodes: Sequence[DisruptableNode]) -> bool:
    """Return whether spot nodes alone would be replaced by spot."""
    return all(one.capacity_type == SPOT for one in nodes) and any(one.option.capacity_type == SPOT for one in found)


def _cut(node: BoughtNode, going: DisruptableNode | None) -> BoughtNode | str:
    """Return a node with the options that its launch may take; or why it may not be launched.

    Args:
        going: the only node that goes, if spot replaces spot.
    """
    count = MOST_OPTIONS
    if going is not None:
        types = dict.fromkeys(one.machine.name for one in node.options)
        others = len(types.keys() - {going.machine})
        if others < LEAST_SPOT_TYPES:
            return (
                f"{SPOT_TO_SPOT} needs {LEAST_SPOT_TYPES} cheaper instance types that hold its pods, there are {others}"
            )
        cheapest = set(itertools.islice(types, LEAST_SPOT_TYPES))
        count = sum(1 for _ in itertools.takewhile(lambda one: one.machine.name in cheapest, node.options))
    conditions = pool_conditions(node.option.pool.requirements, node.option.pool.labels)
    labels = [one.facts.labels for one in node.options]
    if lacking := lacking_values(conditions, labels):
        if node.option.pool.relaxes_min_values:
            return msgspec.structs.replace(node, options=node.options[:count])
        return lacking
    while lacking_values(conditions, labels[:count]):
        count += 1
    return msgspec.structs.replace(node, options=node.options[:count])
