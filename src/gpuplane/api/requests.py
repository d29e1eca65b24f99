"""What a pod asks of GPUs, as Kubernetes counts it."""

from __future__ import annotations

from gpuplane import names
from gpuplane.api.core import Container, Pod, Resources

ENDED = ("Succeeded", "Failed")


def gpus_asked(pod: Pod) -> int:
    """Whole GPUs that a pod asks: the sum of its main containers and sidecars, or its largest init container."""

    def limit(container: Container) -> int:
        return int(container.resources.limits.get(names.GPU_RESOURCE, 0))

    sidecars = sum(limit(container) for container in pod.spec.init_containers if container.restart_policy == "Always")
    first = max((limit(container) for container in pod.spec.init_containers), default=0)
    return max(sum(map(limit, pod.spec.containers)) + sidecars, first)


def gpus_held(pod: Pod) -> int:
    """Whole GPUs that a pod holds: none before it is bound, none once it has ended."""
    return gpus_asked(pod) if pod.spec.node_name and pod.status.phase not in ENDED else 0


_GPU_PREFIXES = ("nvidia.com/", "tencent.com/vcuda-", "alpha.kubernetes.io/nvidia-gpu")


def uses_gpus(pod: Pod) -> bool:
    """Whether a pod asks for GPUs under any of their names, whole, shared or cut, so that it holds their driver."""
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    return any(name.startswith(_GPU_PREFIXES) for container in containers for name in _resources(container.resources))


def _resources(resources: Resources) -> set[str]:
    return {*resources.limits, *resources.requests}
