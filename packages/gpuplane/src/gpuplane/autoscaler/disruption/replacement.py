"""Replacements: the offers at which the nodes to buy cost less than the nodes that they replace. Pure.

One node in place of others may be any offer that costs less than they do together. Several nodes in place of others are
several launches, so the set saves a part of the price at least, and each node launches only those offers with which the
set saves that much whatever the cloud has.

Invariants (packages/gpuplane/tests/autoscaler/disruption/test_replacement.py):

- At the dearest offers that its launches may take, a replacement costs less than the nodes that go.
- A type that goes is launched alone only for less than the cheapest of its nodes that go.
- Spot nodes alone are never replaced by spot nodes.

Source: the price rule of Karpenter 1.14 for one node; several nodes are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from gpuplane.autoscaler.catalogue import SPOT
from gpuplane.autoscaler.disruption.facts import DisruptableNode
from gpuplane.autoscaler.options import NodeOption
from gpuplane.autoscaler.purchase import BoughtNode

TOO_DEAR: Final = "no node that costs less holds its pods"
LEAST_SAVED: Final = 0.02  # part of the price that several replacements save, since all of them have to start
LEAST_SAVED_BY_MORE: Final = 0.2  # the same where they are more than the nodes that go


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
    found = _launched(node, options, nodes)
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
        found = _launched(node, options, nodes)
        if found is None:
            return ()
        made.append(found)
    return tuple(made)


def _launched(node: BoughtNode, options: Sequence[NodeOption], nodes: Sequence[DisruptableNode]) -> BoughtNode | None:
    """Return a node to buy with some of its options; None if there are none, or spot would replace spot."""
    options = list(dict.fromkeys(options))
    if any(one.capacity_type == SPOT for one in options):
        # The cloud would take the cheapest spot offers back first; what replaces on-demand nodes is spot then.
        if all(one.capacity_type == SPOT for one in nodes):
            return None
        options = [one for one in options if one.capacity_type == SPOT]
    if not options:
        return None
    options.sort(key=lambda one: (one.price, one.machine.name, one.zone))
    return msgspec.structs.replace(node, option=options[0], options=tuple(options))
