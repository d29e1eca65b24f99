"""spread: the emptiest GPU of the emptiest node, for those who would rather have quiet than full machines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuplane.sharing.node import NodeState
from gpuplane.sharing.placement.policy import BEST, Policy
from gpuplane.sharing.request import Ask, Request


class SpreadPolicy(Policy):
    name = "spread"

    def order(self, node: NodeState, ask: Ask, fitting: Sequence[int]) -> Iterable[int]:
        return sorted(fitting, key=lambda at: (-node.core[at], -node.memory[at], at))

    def value(self, before: NodeState, after: NodeState, request: Request) -> float:
        """Return a value that is higher the more is left."""
        capacity = len(after.gpus) * after.scale
        return sum(after.core) * BEST / capacity if capacity else 0
