"""The cluster and the cloud at one moment, as questions about removals need them: read once, asked many times.

A question differs from the moment in the nodes that are taken as gone, so nodes, offers and prices are shared. Offers
are made for the pods of every node that may go, since a pool's own labels take the values that pods select.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gpuplane.autoscaler.asks import PodAsk, asks_of
from gpuplane.autoscaler.creation import ClaimWriter
from gpuplane.autoscaler.disruption.supply import PurchaseQuestion
from gpuplane.autoscaler.nodeclaims import launch_options
from gpuplane.autoscaler.observed import PodView
from gpuplane.autoscaler.options import PoolLimits
from gpuplane.autoscaler.purchase import BoughtNode
from gpuplane.autoscaler.snapshot import CloudFacts, ScalingFacts, take_snapshot


class ClusterWorld:
    """One moment of a cluster, as `disruption.supply.RemovalWorld`."""

    def __init__(self, facts: ScalingFacts, cloud: CloudFacts, writer: ClaimWriter) -> None:
        base = take_snapshot(facts, cloud)
        claimed = {claim.status.node_name for claim in facts.claims if claim.status.node_name}
        self._offers = take_snapshot(facts, cloud, claimed).offers
        self._nodes = base.nodes
        self._writer = writer
        self._asks: dict[str, PodAsk] = {}
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

    def question(self, without: Collection[str]) -> PurchaseQuestion:
        """Return the needs of pods if these nodes, by name, were gone."""
        gone = [pod for name in sorted(without) for pod in self._moving.get(name, ())]
        asks = asks_of([pod.reading for pod in (*self._waiting, *gone)], self._anti)
        self._asks.update((ask.key, ask) for ask in asks)
        displaced = frozenset(pod.info.key for pod in gone if pod.info is not None)
        left = [node for node in self._nodes if node.name not in without]
        return PurchaseQuestion(asks, displaced, self._offers, left)

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
                options = launch_options(node, offers[node.option.pool.name], self._asks, limits)
            limits.take(options)
            name = await self._writer.create(node, options, self._asks)
            if name:
                made.append(name)
        return made
