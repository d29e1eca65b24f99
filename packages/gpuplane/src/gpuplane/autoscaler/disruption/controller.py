"""The controller of voluntary disruption: one key for the cluster, since budgets count nodes of a whole pool.

Each pass takes the first method that has something to do: empty nodes by time, drifted nodes, empty nodes by policy.
A plan of consolidation is decided again after 15 s, on the facts of then, before it is carried out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuplane.api.karpenter import DeclaredPool
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.api.upgrade import unix_time
from gpuplane.autoscaler.disruption.budgets import PoolCount, room_by_pool
from gpuplane.autoscaler.disruption.drift_watch import DriftWatch
from gpuplane.autoscaler.disruption.facts import DRIFTED, EMPTY, DisruptableNode, DisruptionPlan
from gpuplane.autoscaler.disruption.marks_controller import MarksController
from gpuplane.autoscaler.disruption.observe import (
    EvictionBudget,
    compile_budgets,
    disruptable_node,
    is_tainted,
)
from gpuplane.autoscaler.disruption.supply import NodeSupply
from gpuplane.autoscaler.disruption.voluntary import next_ttl, plan_drifted_empty, plan_empty, plan_ttl
from gpuplane.autoscaler.disruption.writer import DisruptionWriter
from gpuplane.autoscaler.providers.provider import CloudProvider
from gpuplane.autoscaler.termination.claim_links import BY_NODE, claims_of_node, index_objects, node_of_claim
from kubekit.api.core import Node, Pod
from kubekit.kube import Client, Clock, Controller, EventRecorder, Informer, SharedInformers, Source
from kubekit.kube.tasks import first_of

log = logging.getLogger("gpuplane.autoscaler")
KEY: Final = "cluster"
PASS_SECONDS: Final = 10.0
VALIDATION_SECONDS: Final = 15.0
_GATHER_SECONDS_PER_CLAIM: Final = 0.001
_GATHER_AT_MOST: Final = 2.0


class NodeDisruptionController:
    """Removes nodes of the autoscaler's own accord. `marks` and `drift` are its controllers of single claims."""

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
        self._supply = supply
        self._clock = clock
        self._claims = informers.of(NodeClaim)
        self._nodes = informers.of(Node)
        self._pods = informers.of(Pod)
        self._budgets = informers.of(EvictionBudget)
        self._sent: set[str] = set()  # claims that were deleted, until the watch has shown it
        self._proposed: tuple[DisruptionPlan, float] | None = None
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
        now = unix_time(self._clock.wall()) or 0.0
        pools = self._supply.pools()
        nodes = self._facts(now)
        await self._take_back()
        plan = self._decide(nodes, pools, now)
        if plan is not None:
            await self._carry_out(plan)
            return 1.0
        waits = [PASS_SECONDS]
        waits += [self._proposed[1] - now] if self._proposed is not None else []
        ttl = next_ttl(nodes, {name: pool.disruption for name, pool in pools.items()}, now)
        return max(0.0, min([*waits, ttl] if ttl is not None else waits))

    def _facts(self, now: float) -> list[DisruptableNode]:
        budgets = compile_budgets(self._budgets.items())
        prices = self._supply.prices()
        found = []
        present = set()
        for claim in self._claims.items():
            name = claim.metadata.name
            if claim.metadata.deletion_timestamp is None:
                present.add(name)
            node = node_of_claim(self._nodes.by_index, claim)
            node_name = node.metadata.name if node is not None else ""
            pods = self._pods.by_index(BY_NODE, node_name) if node is not None else []
            seen = disruptable_node(
                claim,
                node,
                pods,
                budgets,
                now,
                nominated=self._supply.is_nominated(node_name) if node is not None else False,
                price=prices.get(node_name),
            )
            found.append(msgspec.structs.replace(seen, away=True) if name in self._sent else seen)
        self._sent &= present
        return found

    def _decide(
        self, nodes: Sequence[DisruptableNode], pools: Mapping[str, DeclaredPool], now: float
    ) -> DisruptionPlan | None:
        """Return the plan to carry out now; one that has to be validated first is remembered."""
        rules = {name: pool.disruption for name, pool in pools.items()}
        plan = plan_ttl(nodes, rules, self._room(EMPTY, nodes, pools, now), now)
        plan = plan or plan_drifted_empty(nodes, self._room(DRIFTED, nodes, pools, now))
        if plan is not None:
            return plan
        if self._proposed is not None and now < self._proposed[1]:
            return None
        plan = plan_empty(nodes, rules, self._room(EMPTY, nodes, pools, now))
        if self._proposed is None:
            if plan is not None:
                self._proposed = (plan, now + VALIDATION_SECONDS)
            return None
        before, self._proposed = {node.claim for node in self._proposed[0].nodes}, None
        if plan is None:
            return None
        still = tuple(node for node in plan.nodes if node.claim in before)
        return msgspec.structs.replace(plan, nodes=still) if still else None

    def _room(
        self, reason: str, nodes: Iterable[DisruptableNode], pools: Mapping[str, DeclaredPool], now: float
    ) -> dict[str, float]:
        counts: dict[str, PoolCount] = {}
        for node in nodes:
            if node.initialized is not None:
                count = counts.get(node.pool, PoolCount())
                counts[node.pool] = PoolCount(count.nodes + 1, count.away + node.away)
        return room_by_pool({name: pool.disruption.budgets for name, pool in pools.items()}, counts, reason, now)

    async def _carry_out(self, plan: DisruptionPlan) -> None:
        for node in plan.nodes:
            claim = self._claims.get(node.claim)
            if claim is not None:
                # Until the watch shows the deletion, the node counts as away: budgets are never spent twice.
                await self.writer.delete(claim, node, plan)
                self._sent.add(node.claim)

    async def _take_back(self) -> None:
        """Let pods onto nodes again whose disruption was begun, and forgotten by a restart."""
        for node in self._nodes.items():
            if not is_tainted(node) or node.metadata.deletion_timestamp:
                continue
            claim = next(iter(claims_of_node(self._claims.by_index, node)), None)
            if claim is None or claim.metadata.deletion_timestamp or claim.metadata.name in self._sent:
                continue
            await self.writer.untaint(node, claim)

    def _look_again(self) -> None:
        self.controller.enqueue(KEY)
