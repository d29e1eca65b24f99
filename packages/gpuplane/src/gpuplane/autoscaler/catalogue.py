"""Instance types with their prices, and the labels of their nodes.

A type is a fact about a cloud; what a pool makes of it is decided in `gpuplane.autoscaler.options`. An offering without
a known price does not exist here, since nothing can be bought by price without one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from gpuplane.api import karpenter
from gpuplane.autoscaler.providers import aws_types

ON_DEMAND: Final = "on-demand"
SPOT: Final = "spot"
MEMORY_OVERHEAD: Final = 0.075  # of the memory, which the hypervisor and the kernel take
_NAME: Final = re.compile(r"([a-z]+)(\d+)([a-z]*(?:-[a-z0-9]+)*)\.([a-z0-9-]+)")
REGION_LABEL: Final = "topology.kubernetes.io/region"


class CatalogueGPU(msgspec.Struct, frozen=True):
    """The GPU model of a type: `label` and `label_memory_mib` as in its labels, `model` and `memory_mib` as in NVML."""

    label: str
    label_memory_mib: int
    model: str
    memory_mib: int


class InstanceType(msgspec.Struct, frozen=True):
    """One type: `memory_mib` is that of the data sheet, `prices` in dollars an hour by capacity type.

    `max_pods` is the most that its network has addresses for. `memory_overhead` is the part of the memory that no
    kubelet sees.
    """

    name: str
    vcpu: int
    memory_mib: int
    max_pods: int
    prices: tuple[tuple[str, float], ...]
    arch: str = "amd64"
    gpus: int = 0
    gpu: CatalogueGPU | None = None
    nvme_gb: int = 0
    network_mbps: int = 0
    memory_overhead: float = MEMORY_OVERHEAD

    def labels(self) -> dict[str, str]:
        """Return the labels that Karpenter's provider sets on nodes of the type, as far as the catalogue knows them."""
        prefix = karpenter.INSTANCE_LABEL_PREFIX
        found = {
            karpenter.TYPE_LABEL: self.name,
            karpenter.ARCH_LABEL: self.arch,
            karpenter.OS_LABEL: "linux",
            prefix + "cpu": str(self.vcpu),
            prefix + "memory": str(self.memory_mib),
        }
        if name := _NAME.fullmatch(self.name):
            letters, generation, more, size = name.groups()
            found[prefix + "category"] = letters
            found[prefix + "generation"] = generation
            found[prefix + "family"] = f"{letters}{generation}{more}"
            found[prefix + "size"] = size
        if self.nvme_gb:
            found[prefix + "local-nvme"] = str(self.nvme_gb)
        if self.network_mbps:
            found[prefix + "network-bandwidth"] = str(self.network_mbps)
        if self.gpu is not None:
            found[prefix + "gpu-name"] = self.gpu.label
            found[prefix + "gpu-manufacturer"] = "nvidia"
            found[prefix + "gpu-count"] = str(self.gpus)
            found[prefix + "gpu-memory"] = str(self.gpu.label_memory_mib)
        return found


def with_overhead(types: Sequence[InstanceType], overhead: float) -> Sequence[InstanceType]:
    """Return types with the part of their memory that no kubelet sees."""
    if all(one.memory_overhead == overhead for one in types):
        return types
    return tuple(msgspec.structs.replace(one, memory_overhead=overhead) for one in types)


def aws_catalogue() -> tuple[InstanceType, ...]:
    """Return the NVIDIA types of AWS in the built-in list."""
    return tuple(
        InstanceType(
            name=name,
            vcpu=vcpu,
            memory_mib=memory,
            max_pods=pods,
            prices=((ON_DEMAND, price),),
            arch=arch,
            gpus=gpus,
            gpu=CatalogueGPU(gpu, gpu_memory, *aws_types.MODELS[gpu, gpu_memory]),
            nvme_gb=nvme,
            network_mbps=network,
        )
        for arch, rows in (("amd64", aws_types.AMD64), ("arm64", aws_types.ARM64))
        for name, vcpu, memory, pods, gpu, gpus, gpu_memory, nvme, network, price in rows
    )
