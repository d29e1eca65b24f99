"""What a pod asks of GPUs, as Kubernetes counts it."""

from __future__ import annotations

from gpuplane import names
from gpuplane.api.core import Container, Pod

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
