"""Reads a pod's requests for GPUs, as Kubernetes counts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from gpuplane import names
from kubekit.api.core import Pod, Resources
from kubekit.api.quantity import Quantity, whole

_CORE_OF_A_TRIAL: Final = 10  # percent of one GPU, and with them a tenth of its memory: enough for a vectorAdd


class GpuOffer(msgspec.Struct, frozen=True):
    """A node's offer of GPUs: `count` of `resource`, of which a pod that tries one asks `least`."""

    resource: str = names.GPU_RESOURCE
    count: int = 0
    least: int = 1


def offer_of(allocatable: Mapping[str, Quantity]) -> GpuOffer:
    """The resource by which a node offers GPUs: whole ones before replicas and MIG devices, and these before shares.

    Shares count as the GPUs that they are parts of.
    """
    counts = {name: whole(amount) for name, amount in allocatable.items()}
    theirs = sorted(name for name in counts if name.startswith(names.NVIDIA_PREFIX) and counts[name] > 0)
    if counts.get(names.GPU_RESOURCE, 0) > 0 or theirs:
        resource = names.GPU_RESOURCE if counts.get(names.GPU_RESOURCE, 0) > 0 else theirs[0]
        return GpuOffer(resource, counts[resource])
    if core := counts.get(names.VCUDA_CORE, 0):
        return GpuOffer(names.VCUDA_CORE, -(-core // 100), _CORE_OF_A_TRIAL)
    return GpuOffer()


_GPU_PREFIXES = ("nvidia.com/", "tencent.com/vcuda-", "alpha.kubernetes.io/nvidia-gpu")


def uses_gpus(pod: Pod) -> bool:
    """Return whether a pod asks for GPUs under any of their names, whole, shared or cut, so that it holds their
    driver.
    """
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    return any(is_gpu(name) for container in containers for name in _resources(container.resources))


def is_gpu(resource: str) -> bool:
    """Return whether the resource is GPUs, whole, shared or cut."""
    return resource.startswith(_GPU_PREFIXES)


def _resources(resources: Resources) -> set[str]:
    return {*resources.limits, *resources.requests}
