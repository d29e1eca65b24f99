"""The amounts of all nodes together: the whole that shares of queues are parts of.

A whole GPU comes with all of its memory. A pod that waits for a whole GPU counts with the memory of the largest one, so
that it counts with no more once it has its node.

Invariant: the total is the sum over the nodes that were set and not removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuplane.scheduler.queues.shares import plus
from gpuplane.scheduler.queues.tree import NOTHING, Amounts
from gpuplane.sharing import Ask, LedgerGPU, Request
from kubekit.scheduling.podinfo import NodeFacts

_PERCENT: Final = 100


class ClusterCapacity:
    """The sums over nodes, updated node by node."""

    def __init__(self) -> None:
        self.total: Amounts = NOTHING
        self._nodes: dict[str, Amounts] = {}
        self._largest: dict[str, int] = {}
        self._largest_of_all: int | None = 0

    def set(self, name: str, facts: NodeFacts | None, gpus: Iterable[LedgerGPU]) -> None:
        """Count a node with its GPUs; without facts it is not counted any more."""
        self.total = plus(self.total, self._nodes.pop(name, NOTHING), -1)
        self._largest.pop(name, None)
        self._largest_of_all = None
        if facts is None:
            return
        memory = [gpu.memory_mib for gpu in gpus]
        allocatable = facts.allocatable
        amounts = (
            allocatable.get("cpu", 0),
            allocatable.get("memory", 0),
            len(memory) * _PERCENT,
            sum(memory),
        )
        self._nodes[name] = amounts
        self.total = plus(self.total, amounts)
        self._largest[name] = max(memory, default=0)

    def largest_gpu_mib(self, node: str = "") -> int:
        """Return the memory of the largest GPU of a node, of an unknown node or without a name of all nodes."""
        if node in self._largest:
            return self._largest[node]
        if self._largest_of_all is None:
            self._largest_of_all = max(self._largest.values(), default=0)
        return self._largest_of_all


def gpu_memory_mib(request: Request, whole_mib: int) -> int:
    """Return the GPU memory that a pod holds at most at any time, where a whole GPU has `whole_mib`."""
    return max((sum(_of_ask(ask, whole_mib) for ask in phase) for phase in request.phases()), default=0)


def _of_ask(ask: Ask, whole_mib: int) -> int:
    if ask.gpus:
        return ask.gpus * whole_mib
    return ask.memory_mib or whole_mib * ask.core // ask.scale
