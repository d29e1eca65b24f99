"""The watts of all GPUs of a simulation, by the model of `placement.watts`: a GPU is busy while a pod holds a part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gpuplane.sharing.assignment import Assignment
from gpuplane.sharing.node import NodeState
from gpuplane.sharing.placement.watts import watts_of


class BusyGPUs:
    """Counts the holders of each GPU; `watts` is what all GPUs take now, in the model."""

    def __init__(self, nodes: Iterable[NodeState]) -> None:
        """
        Args:
            nodes: nodes whose GPUs are all free.
        """
        watts = {(node.name, gpu.index): watts_of(gpu.model) for node in nodes for gpu in node.gpus}
        self._rises = {gpu: of_gpu.rise for gpu, of_gpu in watts.items()}
        self._holders: Counter[tuple[str, int]] = Counter()
        self.watts = sum(of_gpu.idle for of_gpu in watts.values())

    def add(self, assignment: Assignment) -> None:
        """Count a pod that begins to hold its GPUs."""
        for _, index in assignment.held():
            gpu = assignment.node, index
            if not self._holders[gpu]:
                self.watts += self._rises[gpu]
            self._holders[gpu] += 1

    def remove(self, assignment: Assignment) -> None:
        """Count a pod that ends."""
        for _, index in assignment.held():
            gpu = assignment.node, index
            self._holders[gpu] -= 1
            if not self._holders[gpu]:
                self.watts -= self._rises[gpu]
