"""The answers that disruption needs of the part that buys nodes: pools, machines, prices, and promised nodes."""

from __future__ import annotations

from collections.abc import Mapping

from gpuplane.api.karpenter import DeclaredPool
from gpuplane.autoscaler.cloud import ClosedOfferings, CloudView, machine_class
from gpuplane.autoscaler.creation import ClaimWriter
from gpuplane.autoscaler.disruption.cluster_world import ClusterWorld
from gpuplane.autoscaler.providers.provider import MachineClass, Offering
from gpuplane.autoscaler.watch import ClusterWatch


class PoolSupply:
    """Knows pools, prices and promised nodes, as `disruption.supply.NodeSupply` asks for."""

    def __init__(self, watch: ClusterWatch, writer: ClaimWriter, cloud: CloudView, closed: ClosedOfferings) -> None:
        self._watch = watch
        self._writer = writer
        self._cloud = cloud
        self._closed = closed

    def is_synced(self) -> bool:
        """Return whether every object that decisions read has been seen, our own new claims too."""
        return all(informer.has_synced for informer in self._watch.informers) and not self._writer.unseen()

    def is_nominated(self, node: str) -> bool:
        """Return whether waiting pods are expected on a node, or on the node of a claim, at this moment."""
        claims = [claim.metadata.name for claim in self._watch.claims.items() if claim.status.node_name == node]
        return self._writer.nominations.holds(node, *claims)

    def pools(self) -> Mapping[str, DeclaredPool]:
        """Return the pools by name."""
        return {pool.name: pool for pool in self._watch.pools()}

    def machines_of(self, pool: DeclaredPool) -> MachineClass | None:
        """Return the machines of a pool; None if its class is missing."""
        return machine_class(pool, self._watch.classes())

    def close_offering(self, machine: str, zone: str, capacity_type: str) -> None:
        """Buy nothing of this offering for some minutes: the cloud takes such instances back."""
        self._closed.close((Offering(0.0, machine, zone, capacity_type),))

    async def world(self) -> ClusterWorld:
        """Return the cluster and the cloud at this moment. Raises Retryable if the cloud does not answer."""
        watch = self._watch
        cloud = await self._cloud.facts(watch.pools(), watch.classes(), watch.learned())
        # NB: the cloud may have taken its time; the cluster is read after it, so that nothing is decided on old facts.
        return ClusterWorld(watch.facts(), cloud, self._writer)
