"""A node as placement sees it: its GPUs and what is free of each. Plain frozen data; a change makes a new one.

Units: core counts `scale` to a GPU (100, percent, on a cluster; 1000 in the openb experiment), memory is MiB. Free
values are never negative: where more is held than there is (a GPU that shrank, a forged annotation), nothing is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gpuplane.api.gpunode import GPU, GPUNode

MIG_ENABLED: Final = "enabled"  # of a GPU's `mig`


class LedgerGPU(GPU):
    """A GPU of a GPUNode with its health. `fault` says why it is not usable; it is empty when the GPU is. `by_mps`: the
    clients of an MPS control daemon share it.
    """

    fault: str = ""
    by_mps: bool = False

    @property
    def divided(self) -> bool:
        """Return whether it has MIG devices or clients of MPS, and so no shares; see `findings.NO_SHARES`."""
        return self.by_mps or self.mig == MIG_ENABLED

    @property
    def usable(self) -> bool:
        """Return whether it can be allocated, whole or in shares."""
        return not self.fault and not self.divided


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
    usable: tuple[int, ...] | None = None  # positions of the usable GPUs, if they are known already
    by_count: bool = False


def empty(name: str, gpus: Iterable[LedgerGPU], scale: int = 100) -> NodeState:
    """Return the node with all GPUs free."""
    listed = tuple(gpus)
    return NodeState(name, listed, (scale,) * len(listed), tuple(gpu.memory_mib for gpu in listed), scale)


def usable(gpus: Iterable[LedgerGPU]) -> tuple[int, ...]:
    """Return the positions of the GPUs that can be allocated."""
    return tuple(at for at, gpu in enumerate(gpus) if gpu.usable)


def shared_gpus(gpus: tuple[LedgerGPU, ...], *, by_mps: bool) -> tuple[LedgerGPU, ...]:
    """Return the GPUs of a node that shares them by MPS, or does not."""
    return tuple(msgspec.structs.replace(gpu, by_mps=True) for gpu in gpus) if by_mps else gpus


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
