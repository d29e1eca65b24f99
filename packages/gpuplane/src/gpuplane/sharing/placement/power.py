"""power: as `opportunity`, and a GPU that is idle costs the watts that its first pod adds (a model: see `watts`).

So shares go to GPUs that are busy, and pods to models that take less. As in "Power- and Fragmentation-aware Online
Scheduling for GPU Datacenters" (Lettich et al., arXiv:2412.17484) two objectives are weighed; there the second one is
`fragmentation`, and each is scaled to the nodes of one decision. Here both are in units of a GPU's worth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from gpuplane.sharing.node import LedgerGPU, NodeState
from gpuplane.sharing.placement.opportunity import GPU_WORTH, OpportunityPolicy
from gpuplane.sharing.placement.prices import Worth
from gpuplane.sharing.placement.watts import watts_of
from gpuplane.sharing.request import Request

# The power that costs as much as a GPU that no pod can use, in the watts that a GPU of the cluster adds on average.
# Tuned on the openb traces, seeds 100-109: with less, a full cluster holds less than `fragmentation` does; with more,
# less is saved.
_WATTS_OF_A_GPU: Final = 1.1
_SINGLE: Final = 1.0  # while there is no GPU, any number does


class PowerPolicy(OpportunityPolicy):
    name = "power"

    def __init__(self, worth: Worth, cpu_per_gpu: float, scale: int = 100, *, average_rise: float) -> None:
        """
        Args:
            average_rise: watts that the first pod adds to a GPU, on average over the cluster's GPUs.
        """
        super().__init__(worth, cpu_per_gpu, scale)
        self._watt = GPU_WORTH / (_WATTS_OF_A_GPU * average_rise)

    def value(self, before: NodeState, after: NodeState, request: Request) -> float:
        taken = [at for at, (had, left) in enumerate(zip(before.core, after.core, strict=True)) if left < had]
        return super().value(before, after, request) - sum(self._rise(before, at) for at in taken)

    def _rise(self, node: NodeState, at: int) -> int:
        """Return the worth of the watts that a pod on the GPU adds; 0 where a pod holds a part of it already."""
        return 0 if node.core[at] < node.scale else round(watts_of(node.gpus[at].model).rise * self._watt)


def average_rise(nodes: Iterable[Sequence[LedgerGPU]]) -> float:
    """Return the watts that the first pod adds to a GPU, on average over the GPUs of the nodes."""
    rises = [watts_of(gpu.model).rise for gpus in nodes for gpu in gpus]
    return sum(rises) / len(rises) if rises else _SINGLE
