"""The controller of voluntary disruption: one key for the cluster, since budgets count nodes of a whole pool.

Each pass takes the first method that has something to do, in this order: nodes empty for their time, drifted nodes,
empty nodes by policy, consolidation. A plan by policy is decided again after 15 s, on the facts of then.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuplane.api.karpenter import DeclaredPool, PoolDisruption
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.api.upgrade import unix_time
from gpuplane.autoscaler.disruption.blocked import (
    BLOCKED,
    UNCONSOLIDATABLE,
    BlockedEvents,
    blocked_nodes,
    causes,
)
from gpuplane.autoscaler.disruption.budgets import PoolCount, room_by_pool
from gpuplane.autoscaler.disruption.commands import DisruptionCommand, command_state, is_gone
from gpuplane.autoscaler.disruption.consolidation import (
    ConsolidationMove,
    ConsolidationRound,
    confirm_move,
    decide_consolidation,
    why_unconsolidatable,
)
from gpuplane.autoscaler.disruption.drift_watch import DriftWatch
from gpuplane.autoscaler.disruption.eviction_budgets import EvictionBudget, compile_budgets
from gpuplane.autoscaler.disruption.facts import DRIFTED, EMPTY, UNDERUTILIZED, DisruptableNode, DisruptionPlan
from gpuplane.autoscaler.disruption.figures import DisruptionFigures
from gpuplane.autoscaler.disruption.marks_controller import MarksController
from gpuplane.autoscaler.disruption.observe import (
    disruptable_node,
    is_moving,
    is_tainted,
)
from gpuplane.autoscaler.disruption.removal import RemovalOutcome, plan_drifted, removal_outcome
from gpuplane.autoscaler.disruption.supply import NodeSupply, RemovalWorld
from gpuplane.autoscaler.disruption.voluntary import drifted, next_ttl, plan_drifted_empty, plan_empty, plan_ttl
from gpuplane.autoscaler.disruption.writer import DisruptionWriter
from gpuplane.autoscaler.providers.provider import CloudProvider
from gpuplane.autoscaler.purchase import BoughtNode
from gpuplane.autoscaler.termination.claim_links import BY_NODE, claims_of_node, index_objects, node_of_claim
from kubekit.api.core import Node, Pod
from kubekit.kube import Client, Clock, Controller, EventRecorder, Informer, SharedInformers, Source
from kubekit.kube.tasks import first_of

log = logging.getLogger("gpuplane.autoscaler")
KEY: Final = "cluster"
PASS_SECONDS: Final = 10.0
VALIDATION_SECONDS: Final = 15.0
UNSEEN_SECONDS: Final = 0.2
TRY_AGAIN_SECONDS: Final = 300.0  # until facts that admitted no consolidation are tried again
_GATHER_SECONDS_PER_CLAIM: Final = 0.001
_GATHER_AT_MOST: Final = 2.0
_IN_THREAD: Final = 50  # claims

Decision = tuple[DisruptionPlan, tuple[BoughtNode, ...], RemovalWorld | None]
"""A plan, the nodes to buy before, and the moment that they were decided on."""


class NodeDisruptionController:
    """Removes nodes of the autoscaler's own accord. `marks` and `drift` run with it."""

    def __init__(
        self,
        client: Client,
        informers: SharedInformers,
        supply: NodeSupply,
        provider: CloudProvider,
        recorder: EventRecorder,
        clock: Clock,
    ) -> None:
        self.writer = DisruptionWriter(client, recorder, clock)
        self.commands: list[DisruptionCommand] = []
        self.figures = DisruptionFigures()
        self._blocked = BlockedEvents(recorder, clock)
        self._supply = supply
        self._clock = clock
        self._claims = informers.of(NodeClaim)
        self._nodes = informers.of(Node)
        self._pods = informers.of(Pod)
        self._budgets = informers.of(EvictionBudget)
        self._sent: set[str] = set()  # claims that were deleted, until the watch has shown it
        self._proposed: tuple[DisruptionPlan, float] | None = None
        self._fruitless: tuple[Any, float] | None = None
        self._tried: set[str] = set()
        index_objects(informers)
        self.controller = Controller(
            "disruption",
            [Source(self._claims, lambda claim: (KEY,)), Source(self._budgets, lambda budget: ())],
            self.reconcile,
            clock=clock,
        )
        self.marks = MarksController(client, informers, supply, recorder, clock, self._look_again)
        self.drift = DriftWatch(informers, supply, provider, self.marks, clock)
        self._watched: Sequence[Informer[Any]] = (self._claims, self._nodes, self._pods, self._budgets)

    async def run(self) -> None:
        """Work until cancelled."""
        await first_of(self.controller.run(), self.marks.controller.run(), self.drift.controller.run())

    async def reconcile(self, key: str) -> float:
        """Make one pass; returns the seconds until the next one."""
        await self._clock.sleep(min(_GATHER_AT_MOST, _GATHER_SECONDS_PER_CLAIM * len(self._claims)))
        if not self._supply.is_synced() or not all(one.has_synced for one in self._watched):
            return 1.0
        await self._advance()
        await self._take_back()
        now = unix_time(self._clock.wall()) or 0.0
        pools = self._supply.pools()
        nodes = self._facts(now)
        if self._sent:
            return UNSEEN_SECONDS  # a plan on facts from before would count on places that pods are about to take
        decision = await self._decide(nodes, pools, now)
        if decision is not None:
            await self._carry_out(*decision)
            return 1.0
        waits = [PASS_SECONDS]
        waits += [self._proposed[1] - self._clock.now()] if self._proposed is not None else []
        ttl = next_ttl(nodes, {name: pool.disruption for name, pool in pools.items()}, now)
        return max(0.0, min([*waits, ttl] if ttl is not None else waits))

    # -- observe ---------------------------------------------------------------------------------------------------

    def _facts(self, now: float) -> list[DisruptableNode]:
        budgets = compile_budgets(self._budgets.items())
        begun = self._sent.union(*(command.claims for command in self.commands))
        found = []
        for claim in self._claims.items():
            node = node_of_claim(self._nodes.by_index, claim)
            name = node.metadata.name if node is not None else ""
            pods = self._pods.by_index(BY_NODE, name) if node is not None else []
            nominated = node is not None and self._supply.is_nominated(name)
            seen = disruptable_node(claim, node, pods, budgets, now, nominated=nominated)
            found.append(msgspec.structs.replace(seen, away=True) if seen.claim in begun else seen)
        self._sent = {name for name in self._sent if not is_gone(self._claims.get(name))}
        return found

    def _room(
        self, reason: str, nodes: Collection[DisruptableNode], pools: Mapping[str, DeclaredPool], now: float
    ) -> dict[str, float]:
        budgets = {name: pool.disruption.budgets for name, pool in pools.items()}
        room = room_by_pool(budgets, _pool_counts(nodes), reason, now)
        if reason != EMPTY:
            # A Provisioner has no budgets: its nodes are replaced one after the other, as its own controller did.
            for command in self.commands:
                room |= {node.pool: 0.0 for node in command.plan.nodes if not _has_budgets(pools.get(node.pool))}
        return room

    # -- decide ----------------------------------------------------------------------------------------------------

    async def _decide(
        self, nodes: Sequence[DisruptableNode], pools: Mapping[str, DeclaredPool], now: float
    ) -> Decision | None:
        """Return what is done now; a plan that has to be decided twice is remembered."""
        rules = {name: pool.disruption for name, pool in pools.items()}
        room = {reason: self._room(reason, nodes, pools, now) for reason in (EMPTY, DRIFTED, UNDERUTILIZED)}
        self.figures.room = room
        eligible = Counter(
            cause for node in nodes if not node.away and node.pool in rules for cause in causes(node, rules[node.pool])
        )
        self.figures.eligible = {reason: eligible[reason] for reason in room}
        self._blocked.keep({node.claim for node in nodes})
        why = blocked_nodes(nodes, rules, _pool_counts(nodes), room, now)
        self._blocked.report(BLOCKED, why, self._claims.get)
        plan = plan_ttl(nodes, rules, room[EMPTY], now) or plan_drifted_empty(nodes, room[DRIFTED])
        if plan is not None:
            return plan, (), None
        if any(is_moving(claim, now) for claim in self._claims.items()):
            return None  # the places that pods need are unknown until their successors are there
        if any(not node.is_empty and room[DRIFTED].get(node.pool, 0.0) >= 1.0 for node in drifted(nodes)):
            world = await self._supply.world()
            found = await self._answer(lambda: plan_drifted(nodes, room[DRIFTED], _asking(world)))
            if found is not None:
                return *found, world
        if self._proposed is None:
            plan = plan_empty(nodes, rules, room[EMPTY]) or await self._consolidate(nodes, rules, room[UNDERUTILIZED])
            if plan is not None:
                self._proposed = (plan, self._clock.now() + VALIDATION_SECONDS)
            return None
        if self._clock.now() < self._proposed[1]:
            return None
        plan, self._proposed = self._proposed[0], None
        confirmed = await self._confirm(plan, nodes, rules, room)
        if confirmed is None:
            self.figures.refute(plan.policy)
        return confirmed

    async def _confirm(
        self,
        plan: DisruptionPlan,
        nodes: Sequence[DisruptableNode],
        rules: Mapping[str, PoolDisruption],
        room: Mapping[str, dict[str, float]],
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
        found = await self._answer(lambda: decide_consolidation(facts))
        self._report_kept(facts)
        self._fruitless = (looks_like, self._clock.now()) if found is None else None
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
        return ConsolidationRound(priced, rules, room, _asking(world), time.monotonic, self._tried), world

    async def _answer(self, decide: Callable[[], ConsolidationMove | None]) -> ConsolidationMove | None:
        """Decide in a thread where many nodes have to be asked for: else the lease would not be renewed."""
        return decide() if len(self._claims) < _IN_THREAD else await asyncio.to_thread(decide)

    # -- act -------------------------------------------------------------------------------------------------------

    async def _carry_out(
        self, plan: DisruptionPlan, bought: tuple[BoughtNode, ...], world: RemovalWorld | None
    ) -> None:
        made: Sequence[str] = ()
        if bought and world is not None:
            made = await world.buy(bought, capped=plan.reason == UNDERUTILIZED)
            if len(made) < len(bought):
                log.info("replacements not bought, tried again reason=%s nodes=%d", plan.reason, len(plan.nodes))
                await self._drop(made)
                return
        self.figures.decide("replace" if made else "delete", plan.reason, plan.policy)
        if made:
            command = DisruptionCommand(plan, tuple(made), self._clock.now())
            self.commands.append(command)
            await self._taint(command)
            return
        await self._delete(plan)

    async def _taint(self, command: DisruptionCommand) -> None:
        for one in command.plan.nodes:
            claim, node = self._claims.get(one.claim), self._nodes.get(one.node)
            if claim is not None and node is not None:
                await self.writer.taint(node, claim, command.plan)

    async def _advance(self) -> None:
        """Delete the nodes whose replacements take pods; give up those whose replacements do not."""
        for command in list(self.commands):
            state = command_state(command, self._claims.get, self._clock.now())
            if state.ready:
                await self._delete(command.plan)
                self.commands.remove(command)
            elif state.failed:
                log.warning("disruption given up reason=%s: %s", command.plan.reason, state.failed)
                await self._drop(command.replacements)
                await self._give_back(command)
                self.commands.remove(command)
                self.figures.failures += 1
            else:
                await self._taint(command)

    async def _delete(self, plan: DisruptionPlan) -> None:
        for node in plan.nodes:
            claim = self._claims.get(node.claim)
            if claim is not None:
                # Until the watch shows the deletion, the node counts as away: budgets are never spent twice.
                await self.writer.delete(claim, node, plan)
                self._sent.add(node.claim)

    async def _drop(self, claims: Sequence[str]) -> None:
        """Delete claims that were made for nothing, unless they take pods already."""
        for name in claims:
            await self.writer.drop(self._claims.get(name))

    async def _give_back(self, command: DisruptionCommand) -> None:
        """Let pods onto the nodes of a command again.

        NB: also onto those that the watch shows without the taint: it may be behind our own write. A patch on a node
        that has changed is refused, so the command counts against budgets until its nodes are surely free.
        """
        for one in command.plan.nodes:
            claim, node = self._claims.get(one.claim), self._nodes.get(one.node)
            if node is not None and claim is not None and not is_gone(claim):
                await self.writer.untaint(node, claim)

    async def _take_back(self) -> None:
        """Let pods onto nodes again whose disruption was given up, or forgotten by a restart."""
        begun = self._sent.union(*(command.claims for command in self.commands))
        for node in self._nodes.items():
            if not is_tainted(node) or node.metadata.deletion_timestamp:
                continue
            claim = next(iter(claims_of_node(self._claims.by_index, node)), None)
            if claim is None or claim.metadata.deletion_timestamp or claim.metadata.name in begun:
                continue
            await self.writer.untaint(node, claim)

    def _look_again(self) -> None:
        self.controller.enqueue(KEY)


def _pool_counts(nodes: Iterable[DisruptableNode]) -> dict[str, PoolCount]:
    counts: dict[str, PoolCount] = {}
    for node in nodes:
        if node.initialized is not None:
            count = counts.get(node.pool, PoolCount())
            counts[node.pool] = PoolCount(count.nodes + 1, count.away + node.away)
    return counts


def _has_budgets(pool: DeclaredPool | None) -> bool:
    return pool is not None and bool(pool.disruption.budgets)


def _asking(world: RemovalWorld) -> Any:
    """Return the function that answers for nodes at one moment."""

    def ask(without: Collection[str]) -> RemovalOutcome:
        return removal_outcome(world.question(without))

    return ask
