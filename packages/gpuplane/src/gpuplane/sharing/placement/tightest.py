"""tightest: the order of Tencent's gpu-admission, so that its users find their pods where they would have been.

A share goes to the GPU with the least free core that holds it, of those to the one with the least free memory. Nodes
are tried by free core, free memory and name, ascending (`node_order`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuplane.sharing.node import NodeState
from gpuplane.sharing.placement.policy import BEST, Policy
from gpuplane.sharing.request import Ask, Request


class TightestPolicy(Policy):
    name = "tightest"
    in_order = True

    def order(self, node: NodeState, ask: Ask, fitting: Sequence[int]) -> Iterable[int]:
        return sorted(fitting, key=lambda at: (node.core[at], node.memory[at], at))

    def value(self, before: NodeState, after: NodeState, request: Request) -> float:
        """Return a value that is higher the fuller the node was."""
        capacity = len(before.gpus) * before.scale
        return BEST - sum(before.core) * BEST / capacity if capacity else 0


def node_order(node: NodeState) -> tuple[int, int, str]:
    """Return gpu-admission's sort key of nodes; it takes the first node that fits."""
    return sum(node.core), sum(node.memory), node.name
