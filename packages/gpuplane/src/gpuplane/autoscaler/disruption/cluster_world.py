"""The cluster and the cloud at one moment, as questions about removals need them: read once, asked many times.

A question differs from the moment in the nodes that are taken as gone, so nodes, offers and prices are shared. Offers
are made for the pods of every node that may go, since a pool's own labels take the values that pods select.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

from gpuplane.autoscaler.asks import PodAsk, asks_of
from gpuplane.autoscaler.creation import ClaimWriter
from gpuplane.autoscaler.disruption.screening import RemovalScreen
from gpuplane.autoscaler.disruption.supply import PurchaseQuestion
from gpuplane.autoscaler.nodeclaims import launch_options
from gpuplane.autoscaler.observed import PodView
from gpuplane.autoscaler.options import PoolLimits
from gpuplane.autoscaler.placed_pods import PlacedPods
from gpuplane.autoscaler.purchase import BoughtNode
from gpuplane.autoscaler.snapshot import CloudFacts, ScalingFacts, take_snapshot
from kubekit.scheduling.podinfo import PodInfo


class _NumberedAsks:
    """The pods that wait or may move, numbered together: pods of one kind are so in every question."""

    def __init__(
        self,
        waiting: Sequence[PodView],
        moving: Mapping[str, Sequence[PodView]],
        anti: Sequence[PodInfo],
        facts: ScalingFacts,
    ) -> None:
        keys = {pod.info.key for pod in waiting if pod.info is not None}
        going = [pod for pods in moving.values() for pod in pods if pod.info is not None and pod.info.key not in keys]
        asks = asks_of([facts.reading(pod) for pod in (*waiting, *going)], anti, facts.rules())
        self._waiting: list[tuple[int, PodAsk]] = []
        self._moving: dict[str, list[tuple[int, PodAsk]]] = {}
        for at, ask in enumerate(asks):
            some = self._waiting if ask.key in keys else self._moving.setdefault(ask.info.node_name, [])
            some.append((at, ask))

    @cached_property
    def by_key(self) -> dict[str, PodAsk]:
        """Return every pod by namespace/name."""
        return {ask.key: ask for placed in (self._waiting, *self._moving.values()) for _, ask in placed}

    def without(self, nodes: Collection[str]) -> tuple[list[PodAsk], frozenset[str]]:
        """Return the pods that wait if nodes are gone, the largest first, and those of these nodes by key."""
        gone = [placed for name in nodes for placed in self._moving.get(name, ())]
        asks = [ask for _, ask in sorted((*self._waiting, *gone), key=lambda placed: placed[0])]
        return asks, frozenset(ask.key for _, ask in gone)


class ClusterWorld:
    """One moment of a cluster, as `disruption.supply.RemovalWorld`."""

    def __init__(self, facts: ScalingFacts, cloud: CloudFacts, writer: ClaimWriter) -> None:
        base = take_snapshot(facts, cloud)
        self._facts = facts
        claimed = {claim.status.node_name for claim in facts.claims if claim.status.node_name}
        self._offers = take_snapshot(facts, cloud, claimed).offers
        self._nodes = base.nodes
        self._placed = PlacedPods(base.nodes)
        self._writer = writer
        self._moving: dict[str, list[PodView]] = {}
        for pod in facts.pods:
            if pod.moves and pod.info is not None:
                self._moving.setdefault(pod.info.node_name, []).append(pod)
        # Pods of nodes that end already wait for a place as those do that are pending.
        self._waiting = [pod for pod in facts.pods if pod.waits or (pod.info and pod.info.key in base.displaced)]
        self._anti = [pod.info for pod in facts.pods if pod.info is not None and pod.info.affinity.anti_required]

    def prices(self) -> Mapping[str, float]:
        """Return node -> dollars an hour, for the nodes whose price is known."""
        return {node.name: node.price for node in self._nodes if node.price > 0}

    @cached_property
    def _asked(self) -> _NumberedAsks:
        """Return every pod that waits or may move, numbered together."""
        return _NumberedAsks(self._waiting, self._moving, self._anti, self._facts)

    def screen(self) -> RemovalScreen:
        """Return the quick answers for nodes that surely cannot go."""
        return RemovalScreen(self.question)

    def question(self, without: Collection[str]) -> PurchaseQuestion:
        """Return the needs of pods if these nodes, by name, were gone."""
        asks, displaced = self._asked.without(without)
        left = [node for node in self._nodes if node.name not in without]
        return PurchaseQuestion(asks, displaced, self._offers, left, self._placed)

    async def buy(self, nodes: Sequence[BoughtNode], *, capped: bool) -> Sequence[str]:
        """Create the claims of nodes to buy, and return the names of those that were created."""
        limits = PoolLimits(found.pool for found in self._offers)
        offers = {found.pool.name: found for found in self._offers}
        made = []
        for node in nodes:
            if limits.lacking(node.option):
                continue
            if capped:
                options = tuple(one for one in node.options if not limits.lacking(one))
            else:
                options = launch_options(node, offers[node.option.pool.name], self._asked.by_key, limits)
            limits.take(options)
            reason = "underutilized" if capped else "drifted"
            name = await self._writer.create(node, options, self._asked.by_key, reason)
            if name:
                made.append(name)
        return made
