"""Consolidation: nodes whose pods fit elsewhere, or on cheaper nodes. Pure; bounded by steps, not by time, so that the
same cluster gets the same answer however busy the machine is.

Beginnings of the order of price per cost of disruption are tried first: the longest that one node replaces, or none, as
Karpenter does, and on the way those that several nodes replace. Without a longest one, each node is tried alone. A move
that buys nothing is taken before others, else the one that saves most.

Invariants (hypothesis holds them in packages/gpuplane/tests/autoscaler/disruption/test_consolidation.py):

- Every plan leaves each pod of its nodes with a place.
- The sum of prices falls with every plan, whichever offers its launches take (`replacement`).
- No plan has more nodes of a pool than its budgets have room for.

Source: the behaviour of Karpenter 1.14 and its limits. Sets of replacements are ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gpuplane.api.karpenter import PoolDisruption
from gpuplane.autoscaler.disruption.facts import UNDERUTILIZED, DisruptableNode, DisruptionPlan
from gpuplane.autoscaler.disruption.removal import AskRemoval, ScreenRemoval, ask_always
from gpuplane.autoscaler.disruption.replacement import choose_replacements
from gpuplane.autoscaler.disruption.voluntary import candidates, within_room
from gpuplane.autoscaler.purchase import BoughtNode

MULTI_POLICY: Final = "MultiNodeConsolidation"
SINGLE_POLICY: Final = "SingleNodeConsolidation"
MOST_TOGETHER: Final = 100
# Of a pass that tries single nodes; the next one goes on with the nodes that it did not get to. About 3 s of a CPU.
SINGLE_STEPS: Final = 400_000
BALANCED: Final = "Balanced"
WHEN_EMPTY: Final = "WhenEmpty"
BALANCE: Final = 2.0  # k of the policy Balanced: a move saves at least 1/k of its share of the disruption


class ConsolidationRound(msgspec.Struct, frozen=True, eq=False):
    """The facts of one try. `seen` are claims that an earlier try got to alone.

    `why` is filled: claim -> why its node cannot go alone. `spot_to_spot`: the gate SpotToSpotConsolidation is open.
    `steps` bound the try of single nodes: a pod that is screened is one, a purchase has one for each of its pods and
    each node. One node is always tried.
    """

    nodes: Sequence[DisruptableNode]
    pools: Mapping[str, PoolDisruption]
    room: Mapping[str, float]
    ask: AskRemoval
    seen: set[str]
    why: dict[str, str] = {}
    screen: ScreenRemoval = ask_always
    spot_to_spot: bool = False
    steps: int = SINGLE_STEPS


ConsolidationMove = tuple[DisruptionPlan, tuple[BoughtNode, ...]]
"""A plan and the nodes to buy for it."""


class WeighedMove(msgspec.Struct, frozen=True, eq=False):
    """A move, with the dollars an hour that it saves by the cheapest offers of its launches."""

    plan: DisruptionPlan
    bought: tuple[BoughtNode, ...]
    saved: float

    @property
    def parts(self) -> ConsolidationMove:
        return self.plan, self.bought


def decide_consolidation(facts: ConsolidationRound) -> ConsolidationMove | None:
    """Return the next move; None if nothing can be saved, or if the steps were over before each node was tried.

    `facts.seen` is empty if each was.
    """
    ordered = consolidatable(facts.nodes, facts.pools)
    longest, largest = _several(ordered, facts)
    found = [move for move in (longest or _single(ordered, facts), largest) if move is not None]
    return max(found, key=lambda move: (not move.bought, move.saved)).parts if found else None


def confirm_move(plan: DisruptionPlan, facts: ConsolidationRound) -> ConsolidationMove | None:
    """Return the move of the same nodes on the facts of now; None if one of them may not go any more."""
    wanted = {node.claim for node in plan.nodes}
    still = [node for node in consolidatable(facts.nodes, facts.pools) if node.claim in wanted]
    if len(still) != len(wanted) or len(list(within_room(still, facts.room))) != len(still):
        return None
    found = _move(still, facts, plan.policy)
    return found.parts if found is not None else None


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


def _several(
    ordered: Sequence[DisruptableNode], facts: ConsolidationRound
) -> tuple[WeighedMove | None, WeighedMove | None]:
    """Search the longest beginning of the order, of two nodes at least, that one node replaces, or none.

    The beginnings that several nodes replace are weighed on the way: the second answer is the one that saves most.
    """
    tried = list(within_room(ordered, facts.room))[:MOST_TOGETHER]
    least, most, size = 2, len(tried), len(tried)
    longest: WeighedMove | None = None
    largest: WeighedMove | None = None
    while least <= most:
        found = _move(tried[:size], facts, MULTI_POLICY)
        if found is not None and len(found.bought) <= 1:
            longest, least = found, size + 1
        else:
            most = size - 1
            if found is not None and (largest is None or found.saved > largest.saved):
                largest = found
        size = (least + most) // 2
    return longest, largest


def _single(ordered: Sequence[DisruptableNode], facts: ConsolidationRound) -> WeighedMove | None:
    """Try each node alone; those that no earlier round got to come first."""
    left = facts.steps
    tried = sorted(within_room_each(ordered, facts.room), key=lambda node: node.claim in facts.seen)
    for node in tried:
        if left <= 0:
            break
        facts.seen.add(node.claim)
        left -= 1 + len(node.pods)
        why = facts.screen(node)
        if why:
            facts.why[node.claim] = why
            continue
        left -= (1 + len(node.pods)) * len(facts.nodes)
        found = _move([node], facts, SINGLE_POLICY)
        if found is not None:
            return found
    if facts.seen.issuperset(node.claim for node in tried):
        facts.seen.clear()
    return None


def within_room_each(nodes: Iterable[DisruptableNode], room: Mapping[str, float]) -> list[DisruptableNode]:
    """Return the nodes of pools that have room for one node at least."""
    return [node for node in nodes if room.get(node.pool, 0.0) >= 1.0]


def _move(nodes: Sequence[DisruptableNode], facts: ConsolidationRound, policy: str) -> WeighedMove | None:
    found = _weigh(nodes, facts, policy)
    if not isinstance(found, str):
        return found
    if len(nodes) == 1:
        facts.why[nodes[0].claim] = found
    return None


def _weigh(nodes: Sequence[DisruptableNode], facts: ConsolidationRound, policy: str) -> WeighedMove | str:
    """Return the move of some nodes, or why there is none."""
    outcome = facts.ask([node.node for node in nodes])
    if outcome.waiting:
        pod, reasons = min(outcome.waiting.items())
        return f"pod {pod} would find no place" + (f": {reasons[0]}" if reasons else "")
    if outcome.unready:
        return f"its pods would move to {', '.join(outcome.unready[:3])}, which takes no pods yet"
    bought: tuple[BoughtNode, ...] | str = ()
    if outcome.bought:
        bought = choose_replacements(outcome, nodes, spot_to_spot=facts.spot_to_spot)
    if isinstance(bought, str):
        return bought
    saved = sum(node.price or 0.0 for node in nodes) - sum(node.option.price for node in bought)
    if not all(_is_balanced(pool, nodes, saved, facts) for pool in {node.pool for node in nodes}):
        return f"it would save {saved:.3f} $/h, which is not worth the disruption by the policy {BALANCED}"
    counts = Counter(node.option.machine.name for node in bought)
    instead = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in sorted(counts.items()))
    detail = f"saves {saved:.3f} $/h" + (f", replaced by {instead}" if bought else "")
    plan = DisruptionPlan(UNDERUTILIZED, policy, tuple(nodes), detail, validate=True)
    return WeighedMove(plan, bought, saved)


def _is_balanced(pool: str, nodes: Sequence[DisruptableNode], saved: float, facts: ConsolidationRound) -> bool:
    """Return whether the savings are worth the disruption, for a pool of the policy Balanced; True for others."""
    if facts.pools[pool].policy != BALANCED:
        return True
    every = [node for node in facts.nodes if node.pool == pool and node.initialized is not None]
    price, cost = sum(node.price or 0.0 for node in every), sum(node.cost for node in every)
    disruption = sum(node.cost for node in nodes)
    return price > 0 and (saved / price) / (disruption / cost) >= 1 / BALANCE
