"""The questions that disruption asks the part of the autoscaler that buys nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gpuplane.api.karpenter import DeclaredPool
from gpuplane.autoscaler.providers.provider import MachineClass


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

    def prices(self) -> Mapping[str, float]:
        """Return node -> dollars an hour, for the nodes whose price is known."""
        ...

    def close_offering(self, machine: str, zone: str, capacity_type: str) -> None:
        """Buy nothing of this offering for some minutes: the cloud takes such instances back."""
        ...
