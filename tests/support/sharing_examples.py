"""Pods and nodes for the tests of sharing, in few words."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuplane import names
from gpuplane.sharing import LedgerGPU, NodeState, empty
from kubekit.api.core import Pod


def container(name: str, **limits: str | int) -> dict[str, Any]:
    """A container with limits by short names: gpu, core, units (of memory), alpha, or any resource by its own name."""
    spelled = {
        "gpu": names.GPU_RESOURCE,
        "core": names.VCUDA_CORE,
        "units": names.VCUDA_MEMORY,
        "alpha": names.ALPHA_GPU,
    }
    return {"name": name, "resources": {"limits": {spelled.get(key, key): value for key, value in limits.items()}}}


def init(name: str, **limits: str | int) -> dict[str, Any]:
    return container(name, **limits)


def sidecar(name: str, **limits: str | int) -> dict[str, Any]:
    return {**container(name, **limits), "restartPolicy": "Always"}


def pod(*containers: dict[str, Any], first: tuple[dict[str, Any], ...] = (), node: str = "", **annotations: str) -> Pod:
    """A pod; `first` are its init containers."""
    body = {
        "metadata": {"name": "pod", "namespace": "ml", "uid": "u", "annotations": annotations},
        "spec": {"containers": list(containers), "initContainers": list(first), "nodeName": node},
    }
    return msgspec.convert(body, Pod)


def gpus(count: int, memory_mib: int = 16_384, model: str = "Tesla T4", node: str = "n") -> tuple[LedgerGPU, ...]:
    return tuple(
        LedgerGPU(index=at, uuid=f"GPU-{node}-{at}", model=model, memory_mib=memory_mib) for at in range(count)
    )


def node(*core: int, memory: tuple[int, ...] = (), name: str = "n", size: int = 16_384) -> NodeState:
    """A node with this much core free of each GPU; memory likewise, else in proportion."""
    state = empty(name, gpus(len(core), size, node=name))
    free = memory or tuple(size * free // 100 for free in core)
    return msgspec.structs.replace(state, core=core, memory=free)
