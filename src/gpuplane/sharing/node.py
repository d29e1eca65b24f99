"""A node as placement sees it: its GPUs and what is free of each. Plain frozen data; a change makes a new one.

Units: core counts `scale` to a GPU (100, percent, on a cluster; 1000 in the openb experiment), memory is MiB. Free
values are never negative: where more is held than there is (a GPU that shrank, a forged annotation), nothing is free.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gpuplane.api.gpunode import GPU as ApiGPU
from gpuplane.api.gpunode import GPUNode, Link


class Gpu(msgspec.Struct, frozen=True, gc=False):
    """One GPU of a node. `fault` says why it is not usable; empty when it is."""

    index: int
    uuid: str
    model: str = ""
    memory_mib: int = 0
    fault: str = ""
    numa: int = -1
    links: tuple[Link, ...] = ()

    @property
    def healthy(self) -> bool:
        return not self.fault


class NodeState(msgspec.Struct, frozen=True, gc=False):
    """One node at one moment. `core` and `memory` are what is free of each GPU, in the order of `gpus`.

    `cpu_milli` and `host_memory_mib` are free on the node besides GPUs; None if unknown.
    """

    name: str
    gpus: tuple[Gpu, ...]
    core: tuple[int, ...]
    memory: tuple[int, ...]
    scale: int = 100
    cpu_milli: int | None = None
    host_memory_mib: int | None = None
    usable: tuple[int, ...] | None = None  # positions of the healthy GPUs, where somebody has looked already


def empty(name: str, gpus: Iterable[Gpu], scale: int = 100) -> NodeState:
    """The node with nothing held."""
    listed = tuple(gpus)
    return NodeState(name, listed, (scale,) * len(listed), tuple(gpu.memory_mib for gpu in listed), scale)


def healthy(gpus: Iterable[Gpu]) -> tuple[int, ...]:
    """The positions of the GPUs that are usable."""
    return tuple(at for at, gpu in enumerate(gpus) if not gpu.fault)


def gpus_of(node: GPUNode) -> tuple[Gpu, ...]:
    """The GPUs that a GPUNode lists, with their health."""
    return tuple(_gpu(gpu, node.status.health.get(gpu.uuid, "")) for gpu in node.status.gpus)


def _gpu(gpu: ApiGPU, fault: str) -> Gpu:
    return Gpu(gpu.index, gpu.uuid, gpu.model, gpu.memory_mib, fault, gpu.numa, gpu.links)
