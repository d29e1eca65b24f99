"""Consolidation: nodes whose pods fit elsewhere, or on one cheaper node. Pure, but for the time that it may take.

Several nodes are tried together first: of the nodes in the order of price per cost of disruption, the longest beginning
that can go. Then each node alone. A replacement is one node and costs less than the nodes it replaces, at the dearest
offer that its launch may take.

Invariants (hypothesis holds them in packages/gpuplane/tests/autoscaler/disruption/test_consolidation.py):

- Every plan leaves each pod of its nodes with a place.
- The sum of prices falls with every plan.
- No plan has more nodes of a pool than its budgets have room for.

Source: the behaviour of Karpenter 1.14, its price rule and its limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gpuplane.api.karpenter import PoolDisruption
from gpuplane.autoscaler.catalogue import ON_DEMAND, SPOT
from gpuplane.autoscaler.disruption.facts import UNDERUTILIZED, DisruptableNode, DisruptionPlan
from gpuplane.autoscaler.disruption.removal import AskRemoval, RemovalOutcome
from gpuplane.autoscaler.disruption.voluntary import candidates, within_room
from gpuplane.autoscaler.options import NodeOption
from gpuplane.autoscaler.purchase import BoughtNode

MULTI_POLICY: Final = "MultiNodeConsolidation"
SINGLE_POLICY: Final = "SingleNodeConsolidation"
MOST_TOGETHER: Final = 100
MULTI_SECONDS: Final = 60.0
SINGLE_SECONDS: Final = 180.0
BALANCED: Final = "Balanced"
WHEN_EMPTY: Final = "WhenEmpty"
BALANCE: Final = 2.0  # k of the policy Balanced: a move saves at least 1/k of its share of the disruption


class ConsolidationRound(msgspec.Struct, frozen=True, eq=False):
    """The facts of one try. `now` returns seconds; `seen` are claims that an earlier try got to alone.

    `why` is filled: claim -> why its node cannot go alone.
    """

    nodes: Sequence[DisruptableNode]
    pools: Mapping[str, PoolDisruption]
    room: Mapping[str, float]
    ask: AskRemoval
    now: Callable[[], float]
    seen: set[str]
    why: dict[str, str] = {}


ConsolidationMove = tuple[DisruptionPlan, tuple[BoughtNode, ...]]
"""A plan and the nodes to buy for it, none or one."""


def decide_consolidation(facts: ConsolidationRound) -> ConsolidationMove | None:
    """Return the next move; None if nothing can be saved."""
    ordered = consolidatable(facts.nodes, facts.pools)
    return _several(ordered, facts) or _single(ordered, facts)


def confirm_move(plan: DisruptionPlan, facts: ConsolidationRound) -> ConsolidationMove | None:
    """Return the move of the same nodes on the facts of now; None if one of them may not go any more."""
    wanted = {node.claim for node in plan.nodes}
    still = [node for node in consolidatable(facts.nodes, facts.pools) if node.claim in wanted]
    if len(still) != len(wanted) or len(list(within_room(still, facts.room))) != len(still):
        return None
    return _move(still, facts, plan.policy)


def why_unconsolidatable(node: DisruptableNode, pools: Mapping[str, PoolDisruption]) -> str:
    """Return why consolidation does not even try a node that its pool's policy covers; empty if it does."""
    if node.pool not in pools or pools[node.pool].policy in ("", WHEN_EMPTY) or not node.consolidatable:
        return ""
    return node.held or ("the price of the node is unknown" if node.price is None else "")


def consolidatable(nodes: Iterable[DisruptableNode], pools: Mapping[str, PoolDisruption]) -> list[DisruptableNode]:
    """Return the nodes that may be consolidated, the most dollars for the least disruption first."""
    found = [
        node
        for node in candidates(nodes)
        if node.consolidatable and not node.held and not node.stays_for_pods and node.price is not None
        if node.pool in pools and pools[node.pool].policy not in ("", WHEN_EMPTY)
    ]
    return sorted(found, key=lambda node: (-(node.price or 0.0) / node.cost, node.claim))


def _several(ordered: Sequence[DisruptableNode], facts: ConsolidationRound) -> ConsolidationMove | None:
    """Search the longest beginning of the order, of two nodes at least, that can go together."""
    tried = list(within_room(ordered, facts.room))[:MOST_TOGETHER]
    end = facts.now() + MULTI_SECONDS
    least, most = 2, len(tried)
    best: ConsolidationMove | None = None
    while least <= most and facts.now() < end:
        middle = (least + most) // 2
        found = _move(tried[:middle], facts, MULTI_POLICY)
        if found is not None:
            best, least = found, middle + 1
        else:
            most = middle - 1
    return best


def _single(ordered: Sequence[DisruptableNode], facts: ConsolidationRound) -> ConsolidationMove | None:
    """Try each node alone; those that no earlier round got to come first."""
    end = facts.now() + SINGLE_SECONDS
    tried = sorted(within_room_each(ordered, facts.room), key=lambda node: node.claim in facts.seen)
    for node in tried:
        if facts.now() >= end:
            return None
        facts.seen.add(node.claim)
        found = _move([node], facts, SINGLE_POLICY)
        if found is not None:
            return found
    facts.seen.clear()
    return None


def within_room_each(nodes: Iterable[DisruptableNode], room: Mapping[str, float]) -> list[DisruptableNode]:
    """Return the nodes of pools that have room for one node at least."""
    return [node for node in nodes if room.get(node.pool, 0.0) >= 1.0]


def _move(nodes: Sequence[DisruptableNode], facts: ConsolidationRound, policy: str) -> ConsolidationMove | None:
    found = _weigh(nodes, facts, policy)
    if not isinstance(found, str):
        return found
    if len(nodes) == 1:
        facts.why[nodes[0].claim] = found
    return None


def _weigh(nodes: Sequence[DisruptableNode], facts: ConsolidationRound, policy: str) -> ConsolidationMove | str:
    """Return the move of some nodes, or why there is none."""
    outcome = facts.ask([node.node for node in nodes])
    if outcome.waiting:
        pod, reasons = min(outcome.waiting.items())
        return f"pod {pod} would find no place" + (f": {reasons[0]}" if reasons else "")
    if outcome.unready:
        return f"its pods would move to {', '.join(outcome.unready[:3])}, which takes no pods yet"
    if len(outcome.bought) > 1:
        return f"its pods would need {len(outcome.bought)} new nodes"
    saved = sum(node.price or 0.0 for node in nodes)
    bought: tuple[BoughtNode, ...] = ()
    if outcome.bought:
        replacement = cheaper(outcome, nodes)
        if replacement is None:
            return "no node that costs less holds its pods"
        bought = (replacement,)
        saved -= _worst_price(replacement.options)
    if not all(_is_balanced(pool, nodes, saved, facts) for pool in {node.pool for node in nodes}):
        return f"it would save {saved:.3f} $/h, which is not worth the disruption by the policy {BALANCED}"
    detail = f"saves {saved:.3f} $/h" + (f", replaced by {bought[0].option.machine.name}" if bought else "")
    return DisruptionPlan(UNDERUTILIZED, policy, tuple(nodes), detail, validate=True), bought


def cheaper(outcome: RemovalOutcome, nodes: Sequence[DisruptableNode]) -> BoughtNode | None:
    """Return the one node to buy with only those options that cost less than the nodes it replaces; None for none.

    A spot node is not replaced by a spot node: the cloud would take the cheapest back first.
    """
    node = outcome.bought[0]
    limit = sum(one.price or 0.0 for one in nodes)
    own = {one.machine: min(o.price or 0.0 for o in nodes if o.machine == one.machine) for one in nodes}
    options = [one for one in (node.option, *node.options) if one.price < min(limit, own.get(one.machine.name, limit))]
    options = list({id(one): one for one in options}.values())
    all_spot = all(one.capacity_type == SPOT for one in nodes)
    if any(one.capacity_type == SPOT for one in options):
        if all_spot:
            return None
        options = [one for one in options if one.capacity_type == SPOT]
    if not options:
        return None
    options.sort(key=lambda one: (one.price, one.machine.name, one.zone))
    return msgspec.structs.replace(node, option=options[0], options=tuple(options))


def _worst_price(options: Sequence[NodeOption]) -> float:
    kinds = {one.capacity_type for one in options}
    kind = SPOT if SPOT in kinds else ON_DEMAND if ON_DEMAND in kinds else ""
    return max(one.price for one in options if not kind or one.capacity_type == kind)


def _is_balanced(pool: str, nodes: Sequence[DisruptableNode], saved: float, facts: ConsolidationRound) -> bool:
    """Return whether the savings are worth the disruption, for a pool of the policy Balanced; True for others."""
    if facts.pools[pool].policy != BALANCED:
        return True
    every = [node for node in facts.nodes if node.pool == pool and node.initialized is not None]
    price, cost = sum(node.price or 0.0 for node in every), sum(node.cost for node in every)
    disruption = sum(node.cost for node in nodes)
    return price > 0 and (saved / price) / (disruption / cost) >= 1 / BALANCE
