"""The nodes and pods of a packing trace as Kubernetes objects, as an API server would deliver them. Pure.

Core is whole percent on a cluster, so a share of 467 thousandths requests 47%.
"""

from __future__ import annotations

from typing import Any, Final

from gpuplane import names
from gpuplane.sharing import WHOLE
from gpuplane.sharing.findings import MEMORY_UNIT_MIB
from gpuplane.sharing.packing import MILLI, Job, PackingMachine
from kubekit.scheduling.podinfo import DEFAULT_SCHEDULER

GPU_MEMORY_MIB: Final = 16_384  # of every GPU: traces name none, and a share's memory is the part of its core
PODS_PER_NODE: Final = 500  # so many that a trace, which knows no such limit, never reaches it
NAMESPACE: Final = "default"
Manifest = dict[str, Any]


def node_of(machine: PackingMachine) -> Manifest:
    """Return the Node of a machine."""
    amounts = {
        "cpu": f"{machine.cpu_milli}m",
        "memory": f"{machine.memory_mib}Mi",
        "pods": str(PODS_PER_NODE),
        names.VCUDA_CORE: str(WHOLE * machine.gpus),
        names.VCUDA_MEMORY: str(GPU_MEMORY_MIB * machine.gpus // MEMORY_UNIT_MIB),
    }
    conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    return {
        "metadata": {"name": machine.name, "uid": machine.name, "resourceVersion": "1"},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": conditions},
    }


def gpunode_of(machine: PackingMachine) -> Manifest:
    """Return the GPUNode of a machine."""
    gpus = [
        {"index": at, "uuid": f"GPU-{machine.name}-{at}", "model": machine.model, "memoryMib": GPU_MEMORY_MIB}
        for at in range(machine.gpus)
    ]
    return {"metadata": {"name": machine.name, "resourceVersion": "1"}, "status": {"gpus": gpus}}


def pod_of(name: str, job: Job, scheduler_name: str = DEFAULT_SCHEDULER) -> Manifest:
    """Return a pod that waits for the scheduler."""
    host = {"cpu": f"{job.cpu_milli}m", "memory": f"{job.memory_mib}Mi"}
    core = -(-job.load * WHOLE // MILLI)
    gpus = {names.VCUDA_CORE: str(core)} if core else {}
    container = {"name": "main", "image": "app", "resources": {"requests": host | gpus, "limits": gpus}}
    metadata: Manifest = {"name": name, "namespace": NAMESPACE, "uid": name, "resourceVersion": "1"}
    if job.models:
        metadata["annotations"] = {names.GPU_MODELS_ANNOTATION: ",".join(job.models)}
    return {
        "metadata": metadata,
        "spec": {"containers": [container], "schedulerName": scheduler_name},
        "status": {"phase": "Pending"},
    }


def bound(pod: Manifest, node: str, annotations: dict[str, str]) -> Manifest:
    """Return the pod as its Binding leaves it."""
    meta = pod["metadata"]
    said = {**meta.get("annotations", {}), **annotations}
    return {
        **pod,
        "metadata": {**meta, "annotations": said, "resourceVersion": "2"},
        "spec": {**pod["spec"], "nodeName": node},
    }
