"""A node as placement sees it: its GPUs and what is free of each. Plain frozen data; a change makes a new one.

Units: core counts `scale` to a GPU (100, percent, on a cluster; 1000 in the openb experiment), memory is MiB. Free
values are never negative: where more is held than there is (a GPU that shrank, a forged annotation), nothing is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gpuplane.api.gpunode import GPU, GPUNode


class LedgerGPU(GPU):
    """A GPU of a GPUNode with its health. `fault` says why it is not usable; it is empty when the GPU is."""

    fault: str = ""

    @property
    def healthy(self) -> bool:
        return not self.fault


class NodeState(msgspec.Struct, frozen=True, gc=False):
    """One node at one moment. `core` and `memory` are what is free of each GPU, in the order of `gpus`.

    `cpu_milli` and `host_memory_mib` are free on the node besides GPUs; None if unknown. `by_count`: the node's
    `nvidia.com/gpu` are replicas or MIG devices, which kube-scheduler counts and the kubelet chooses.
    """

    name: str
    gpus: tuple[LedgerGPU, ...]
    core: tuple[int, ...]
    memory: tuple[int, ...]
    scale: int = 100
    cpu_milli: int | None = None
    host_memory_mib: int | None = None
    usable: tuple[int, ...] | None = None  # positions of the healthy GPUs, if they are known already
    by_count: bool = False


def empty(name: str, gpus: Iterable[LedgerGPU], scale: int = 100) -> NodeState:
    """Return the node with all GPUs free."""
    listed = tuple(gpus)
    return NodeState(name, listed, (scale,) * len(listed), tuple(gpu.memory_mib for gpu in listed), scale)


def healthy(gpus: Iterable[LedgerGPU]) -> tuple[int, ...]:
    """Return the positions of the healthy GPUs."""
    return tuple(at for at, gpu in enumerate(gpus) if not gpu.fault)


def gpus_of(node: GPUNode) -> tuple[LedgerGPU, ...]:
    """Return the GPUs that a GPUNode lists, with their health."""
    return with_health(node.status.gpus, node.status.health)


def with_health(gpus: Iterable[GPU], health: Mapping[str, str]) -> tuple[LedgerGPU, ...]:
    """Return the GPUs with their health; `health` has the fault of each UUID that has a fault."""
    return tuple(
        LedgerGPU(
            index=gpu.index,
            uuid=gpu.uuid,
            model=gpu.model,
            memory_mib=gpu.memory_mib,
            pci=gpu.pci,
            numa=gpu.numa,
            compute=gpu.compute,
            mig=gpu.mig,
            links=gpu.links,
            fault=health.get(gpu.uuid, ""),
        )
        for gpu in gpus
    )
