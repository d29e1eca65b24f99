"""The controller of voluntary disruption: one key for the cluster, since budgets count nodes of a whole pool.

Each pass advances what is under way (`execution`), reads the facts, and takes one decision (`decisions`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuplane.api.karpenter import DeclaredPool
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.api.upgrade import unix_time
from gpuplane.autoscaler.disruption.budgets import room_by_pool
from gpuplane.autoscaler.disruption.decisions import DisruptionDecisions, pool_counts
from gpuplane.autoscaler.disruption.drift_watch import DriftWatch
from gpuplane.autoscaler.disruption.eviction_budgets import EvictionBudget, compile_budgets
from gpuplane.autoscaler.disruption.execution import PlanExecution
from gpuplane.autoscaler.disruption.facts import DRIFTED, EMPTY, UNDERUTILIZED, DisruptableNode
from gpuplane.autoscaler.disruption.figures import DisruptionFigures
from gpuplane.autoscaler.disruption.marks_controller import MarksController
from gpuplane.autoscaler.disruption.observe import disruptable_node
from gpuplane.autoscaler.disruption.supply import NodeSupply
from gpuplane.autoscaler.disruption.voluntary import next_ttl
from gpuplane.autoscaler.disruption.writer import DisruptionWriter
from gpuplane.autoscaler.life_figures import LifeFigures
from gpuplane.autoscaler.providers.provider import CloudProvider
from gpuplane.autoscaler.termination.claim_links import BY_NODE, index_objects, node_of_claim
from kubekit.api.core import Node, Pod
from kubekit.kube import Client, Clock, Controller, EventRecorder, Informer, SharedInformers, Source
from kubekit.kube.tasks import first_of

KEY: Final = "cluster"
PASS_SECONDS: Final = 10.0
UNSEEN_SECONDS: Final = 0.2
_GATHER_SECONDS_PER_CLAIM: Final = 0.001
_GATHER_AT_MOST: Final = 2.0


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
        *,
        spot_to_spot: bool = False,
        figures: LifeFigures | None = None,
    ) -> None:
        figures = figures or LifeFigures()
        self.writer = DisruptionWriter(client, recorder, clock, figures)
        self.figures = DisruptionFigures()
        self._supply = supply
        self._clock = clock
        self._claims = informers.of(NodeClaim)
        self._nodes = informers.of(Node)
        self._pods = informers.of(Pod)
        self._budgets = informers.of(EvictionBudget)
        self._execution = PlanExecution(self._claims, self._nodes, self.writer, self.figures, clock)
        self._decisions = DisruptionDecisions(
            supply, self._claims, self.figures, recorder, clock, spot_to_spot=spot_to_spot, lives=figures
        )
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
        await self._execution.advance()
        await self._execution.take_back()
        now = unix_time(self._clock.wall()) or 0.0
        pools = self._supply.pools()
        nodes = self._facts(now)
        if self._execution.sent:
            return UNSEEN_SECONDS  # a plan on facts from before would count on places that pods are about to take
        room = {reason: self._room(reason, nodes, pools, now) for reason in (EMPTY, DRIFTED, UNDERUTILIZED)}
        decision = await self._decisions.decide(nodes, pools, room, now)
        if decision is not None:
            await self._execution.carry_out(*decision)
            return 1.0
        waits = [PASS_SECONDS]
        if self._decisions.proposed is not None:
            waits.append(self._decisions.proposed[1] - self._clock.now())
        ttl = next_ttl(nodes, {name: pool.disruption for name, pool in pools.items()}, now)
        return max(0.0, min([*waits, ttl] if ttl is not None else waits))

    def _facts(self, now: float) -> list[DisruptableNode]:
        budgets = compile_budgets(self._budgets.items())
        begun = self._execution.begun
        found = []
        for claim in self._claims.items():
            node = node_of_claim(self._nodes.by_index, claim)
            name = node.metadata.name if node is not None else ""
            pods = self._pods.by_index(BY_NODE, name) if node is not None else []
            nominated = node is not None and self._supply.is_nominated(name)
            seen = disruptable_node(claim, node, pods, budgets, now, nominated=nominated)
            found.append(msgspec.structs.replace(seen, away=True) if seen.claim in begun else seen)
        self._execution.forget_gone()
        return found

    def _room(
        self, reason: str, nodes: Collection[DisruptableNode], pools: Mapping[str, DeclaredPool], now: float
    ) -> dict[str, float]:
        budgets = {name: pool.disruption.budgets for name, pool in pools.items()}
        room = room_by_pool(budgets, pool_counts(nodes), reason, now)
        if reason != EMPTY:
            # A Provisioner has no budgets: its nodes are replaced one after the other, as its own controller did.
            for command in self._execution.commands:
                room |= {node.pool: 0.0 for node in command.plan.nodes if not _has_budgets(pools.get(node.pool))}
        return room

    def _look_again(self) -> None:
        self.controller.enqueue(KEY)


def _has_budgets(pool: DeclaredPool | None) -> bool:
    return pool is not None and bool(pool.disruption.budgets)
