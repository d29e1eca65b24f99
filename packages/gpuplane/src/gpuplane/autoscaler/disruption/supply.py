"""The questions that disruption asks the part of the autoscaler that buys nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from gpuplane.api.karpenter import DeclaredPool
from gpuplane.autoscaler.asks import PodAsk
from gpuplane.autoscaler.disruption.facts import DisruptableNode
from gpuplane.autoscaler.existing import ExistingNode
from gpuplane.autoscaler.options import PoolOptions
from gpuplane.autoscaler.placed_pods import PlacedPods
from gpuplane.autoscaler.providers.provider import MachineClass
from gpuplane.autoscaler.purchase import BoughtNode


class PurchaseQuestion(msgspec.Struct, frozen=True, eq=False):
    """The needs of pods if some nodes were gone.

    `asks` are the pods that wait, and those of the nodes that are taken as gone (`displaced`, as namespace/name).
    `offers` can be bought now, `nodes` are there already or on their way. `placed` are the pods of these nodes, and may
    be those of others too.
    """

    asks: Sequence[PodAsk]
    displaced: frozenset[str]
    offers: Sequence[PoolOptions]
    nodes: Sequence[ExistingNode]
    placed: PlacedPods | None = None


class RemovalWorld(Protocol):
    """The cluster and the cloud at one moment."""

    def prices(self) -> Mapping[str, float]:
        """Return node -> dollars an hour, for the nodes whose price is known."""
        ...

    def question(self, without: Collection[str]) -> PurchaseQuestion:
        """Return the needs of pods if these nodes, by name, were gone."""
        ...

    def screen(self) -> Callable[[DisruptableNode], str]:
        """Return the function that says why a node surely cannot go alone for less; empty if it has to be asked for."""
        ...

    async def buy(self, nodes: Sequence[BoughtNode], *, capped: bool) -> Sequence[str]:
        """Create the claims of nodes to buy, and return the names of those that were created.

        A limit that is exceeded, or a failure, creates fewer.

        Args:
            capped: launch no offer but the `options` of a node, which bound its price.
        """
        ...


class NodeSupply(Protocol):
    """The part of the autoscaler that knows pools and buys nodes."""

    def is_synced(self) -> bool:
        """Return whether every object that decisions read has been seen."""
        ...

    def is_nominated(self, node: str) -> bool:
        """Return whether waiting pods are expected on a node at this moment."""
        ...

    def pools(self) -> Mapping[str, DeclaredPool]:
        """Return the pools by name."""
        ...

    def machines_of(self, pool: DeclaredPool) -> MachineClass | None:
        """Return the machines of a pool; None if its class is missing."""
        ...

    def close_offering(self, machine: str, zone: str, capacity_type: str) -> None:
        """Buy nothing of this offering for some minutes: the cloud takes such instances back."""
        ...

    async def world(self) -> RemovalWorld:
        """Return the cluster and the cloud at this moment. Raises Retryable if the cloud does not answer."""
        ...
