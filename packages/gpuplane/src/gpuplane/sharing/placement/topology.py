"""topology: nodes whose near groups of free GPUs stay whole, and shares on the GPUs that others miss least."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuplane.sharing.node import NodeState
from gpuplane.sharing.placement.nearness import nearness
from gpuplane.sharing.placement.policy import BEST, Policy
from gpuplane.sharing.request import Ask, Request


class TopologyPolicy(Policy):
    name = "topology"

    def order(self, node: NodeState, ask: Ask, fitting: Sequence[int]) -> Iterable[int]:
        """Sort the fullest GPU first; of equally full GPUs that with the fewest wholly free GPUs near it."""
        pairs = nearness(node.gpus).pairs
        free = [at for at, core in enumerate(node.core) if core == node.scale]
        missed = {at: sum(pairs[at][other] for other in free) for at in fitting}
        return sorted(fitting, key=lambda at: (node.core[at], node.memory[at], missed[at], at))

    def value(self, before: NodeState, after: NodeState, request: Request) -> float:
        """Return how near to each other the remaining whole GPUs stay, of those that the node has."""
        near = nearness(after.gpus).near
        most = near(range(len(after.gpus)))
        if not most:
            return BEST - sum(before.core) * BEST / (before.scale * max(1, len(before.gpus)))
        return BEST - (near(_whole(before)) - near(_whole(after))) * BEST / most


def _whole(node: NodeState) -> list[int]:
    return [at for at, core in enumerate(node.core) if core == node.scale]
