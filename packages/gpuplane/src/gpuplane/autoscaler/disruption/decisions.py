"""Chooses what is done in one pass, and decides plans by policy a second time 15 s later, on the facts of then.

The first method that has something to do is taken, in this order: nodes empty for their time, drifted nodes, empty
nodes by policy, consolidation.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuplane.api.karpenter import DeclaredPool, PoolDisruption
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.autoscaler.disruption.blocked import (
    BLOCKED,
    UNCONSOLIDATABLE,
    BlockedEvents,
    blocked_nodes,
    causes,
)
from gpuplane.autoscaler.disruption.budgets import PoolCount
from gpuplane.autoscaler.disruption.consolidation import (
    ConsolidationMove,
    ConsolidationRound,
    confirm_move,
    decide_consolidation,
    why_unconsolidatable,
)
from gpuplane.autoscaler.disruption.facts import DRIFTED, EMPTY, UNDERUTILIZED, DisruptableNode, DisruptionPlan
from gpuplane.autoscaler.disruption.figures import DisruptionFigures
from gpuplane.autoscaler.disruption.observe import is_moving
from gpuplane.autoscaler.disruption.removal import asking, plan_drifted
from gpuplane.autoscaler.disruption.supply import NodeSupply, RemovalWorld
from gpuplane.autoscaler.disruption.voluntary import drifted, plan_drifted_empty, plan_empty, plan_ttl
from gpuplane.autoscaler.life_figures import LifeFigures
from gpuplane.autoscaler.purchase import BoughtNode
from kubekit.kube import Clock, EventRecorder, Informer

VALIDATION_SECONDS: Final = 15.0
TRY_AGAIN_SECONDS: Final = 300.0  # until facts that admitted no consolidation are tried again
_IN_THREAD: Final = 50  # claims

RoomByReason = Mapping[str, Mapping[str, float]]
"""Reason -> pool -> nodes that may go now."""
Decision = tuple[DisruptionPlan, tuple[BoughtNode, ...], RemovalWorld | None]
"""A plan, the nodes to buy before, and the moment that they were decided on."""


class DisruptionDecisions:
    """The decisions of all passes. `proposed` is a plan that is decided again, with the time of then."""

    def __init__(
        self,
        supply: NodeSupply,
        claims: Informer[NodeClaim],
        figures: DisruptionFigures,
        recorder: EventRecorder,
        clock: Clock,
        *,
        spot_to_spot: bool = False,
        lives: LifeFigures | None = None,
    ) -> None:
        self._lives = lives or LifeFigures()
        self.proposed: tuple[DisruptionPlan, float] | None = None
        self._supply = supply
        self._claims = claims
        self._figures = figures
        self._blocked = BlockedEvents(recorder, clock)
        self._clock = clock
        self._spot_to_spot = spot_to_spot
        self._fruitless: tuple[Any, float] | None = None
        self._tried: set[str] = set()

    async def decide(
        self, nodes: Sequence[DisruptableNode], pools: Mapping[str, DeclaredPool], room: RoomByReason, now: float
    ) -> Decision | None:
        """Return what is done now; a plan that has to be decided twice is remembered."""
        rules = {name: pool.disruption for name, pool in pools.items()}
        self._report_blocked(nodes, rules, room, now)
        plan = plan_ttl(nodes, rules, room[EMPTY], now) or plan_drifted_empty(nodes, room[DRIFTED])
        if plan is not None:
            return plan, (), None
        if any(is_moving(claim, now) for claim in self._claims.items()):
            return None  # the places that pods need are unknown until their successors are there
        if any(not node.is_empty and room[DRIFTED].get(node.pool, 0.0) >= 1.0 for node in drifted(nodes)):
            world = await self._supply.world()
            found = await self._timed(DRIFTED, "", lambda: plan_drifted(nodes, room[DRIFTED], asking(world)))
            if found is not None:
                return *found, world
        if self.proposed is None:
            plan = plan_empty(nodes, rules, room[EMPTY]) or await self._consolidate(nodes, rules, room[UNDERUTILIZED])
            if plan is not None:
                self.proposed = (plan, self._clock.now() + VALIDATION_SECONDS)
            return None
        if self._clock.now() < self.proposed[1]:
            return None
        plan, self.proposed = self.proposed[0], None
        confirmed = await self._confirm(plan, nodes, rules, room)
        if confirmed is None:
            self._figures.refute(plan.policy)
        return confirmed

    def _report_blocked(
        self,
        nodes: Sequence[DisruptableNode],
        rules: Mapping[str, PoolDisruption],
        room: RoomByReason,
        now: float,
    ) -> None:
        """Count the nodes that would go, and say of each that a rule keeps which one."""
        eligible = Counter(
            cause for node in nodes if not node.away and node.pool in rules for cause in causes(node, rules[node.pool])
        )
        self._figures.room = {reason: dict(left) for reason, left in room.items()}
        self._figures.eligible = {reason: eligible[reason] for reason in room}
        self._figures.away = {pool: count.away for pool, count in pool_counts(nodes).items()}
        why = blocked_nodes(nodes, rules, pool_counts(nodes), room, now)
        self._blocked.report(BLOCKED, why, self._claims.get)

    async def _confirm(
        self,
        plan: DisruptionPlan,
        nodes: Sequence[DisruptableNode],
        rules: Mapping[str, PoolDisruption],
        room: RoomByReason,
    ) -> Decision | None:
        wanted = {node.claim for node in plan.nodes}
        if plan.reason == EMPTY:
            still = plan_empty([node for node in nodes if node.claim in wanted], rules, room[EMPTY])
            return (still, (), None) if still is not None else None
        facts, world = await self._round(nodes, rules, room[UNDERUTILIZED])
        found = await self._answer(lambda: confirm_move(plan, facts))
        return (*found, world) if found is not None else None

    async def _consolidate(
        self, nodes: Sequence[DisruptableNode], rules: Mapping[str, PoolDisruption], room: Mapping[str, float]
    ) -> DisruptionPlan | None:
        may = [node for node in nodes if node.consolidatable and rules.get(node.pool, PoolDisruption()).policy]
        looks_like = (sorted((node.claim, node.pods, node.stays, node.held) for node in may), dict(room))
        if not may or (
            self._fruitless is not None
            and self._fruitless[0] == looks_like
            and self._clock.now() - self._fruitless[1] < TRY_AGAIN_SECONDS
        ):
            return None
        facts, _ = await self._round(nodes, rules, room)
        found = await self._timed(UNDERUTILIZED, "consolidation", lambda: decide_consolidation(facts))
        if found is None and facts.seen:
            self._figures.cut_off += 1
        self._report_kept(facts)
        # A try that was cut off goes on in the next pass with the nodes that it did not get to.
        self._fruitless = (looks_like, self._clock.now()) if found is None and not facts.seen else None
        return found[0] if found is not None else None

    def _report_kept(self, facts: ConsolidationRound) -> None:
        """Say of each node that consolidation leaves why it does."""
        untried = {node.claim: why_unconsolidatable(node, facts.pools) for node in facts.nodes}
        self._blocked.report(UNCONSOLIDATABLE, {**untried, **facts.why}, self._claims.get)

    async def _round(
        self, nodes: Sequence[DisruptableNode], rules: Mapping[str, PoolDisruption], room: Mapping[str, float]
    ) -> tuple[ConsolidationRound, RemovalWorld]:
        world = await self._supply.world()
        prices = world.prices()
        priced = [msgspec.structs.replace(node, price=prices.get(node.node)) for node in nodes]
        facts = ConsolidationRound(
            priced,
            rules,
            room,
            asking(world),
            self._tried,
            screen=world.screen(),
            spot_to_spot=self._spot_to_spot,
        )
        return facts, world

    async def _timed(
        self, reason: str, kind: str, decide: Callable[[], ConsolidationMove | None]
    ) -> ConsolidationMove | None:
        """Decide, and count how long that took."""
        began = self._clock.now()
        found = await self._answer(decide)
        seconds = self._clock.now() - began
        self._figures.seconds.observe(seconds, reason=reason.lower(), consolidation_type=kind)
        self._lives.decisions.observe(seconds, controller="disruption")
        return found

    async def _answer(self, decide: Callable[[], ConsolidationMove | None]) -> ConsolidationMove | None:
        """Decide in a thread where many nodes have to be asked for: else the lease would not be renewed."""
        return decide() if len(self._claims) < _IN_THREAD else await asyncio.to_thread(decide)


def pool_counts(nodes: Iterable[DisruptableNode]) -> dict[str, PoolCount]:
    """Return pool -> its initialized nodes, and those among them that are away."""
    counts: dict[str, PoolCount] = {}
    for node in nodes:
        if node.initialized is not None:
            count = counts.get(node.pool, PoolCount())
            counts[node.pool] = PoolCount(count.nodes + 1, count.away + node.away)
    return counts
