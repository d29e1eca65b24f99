"""Fragmented clusters without an API server: nodes with GPUs, bound pods that hold parts of them, pods that wait."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.scheduler.filtering import Quotas
from gpuplane.scheduler.pods.objects import ScheduledPod
from gpuplane.scheduler.policies import Chosen, Policies
from gpuplane.scheduler.simulation.objects import GPU_MEMORY_MIB, bound, gpunode_of, node_of, pod_of
from gpuplane.scheduler.simulation.offline import UNLIMITED, OfflineCluster
from gpuplane.sharing import Assignment, Part, to_annotations
from gpuplane.sharing.packing import Job, PackingMachine

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "app", "uid": "app", "controller": True}


def fragmented(nodes: dict[str, int], policy: str = "tightest", quotas: Quotas = UNLIMITED) -> OfflineCluster:
    """A cluster with these numbers of GPUs, by node."""
    cluster = OfflineCluster(names.SCHEDULER_NAME, Policies(Chosen(policy)), quotas)
    for name, gpus in nodes.items():
        machine = PackingMachine(name=name, gpus=gpus, model="T4", cpu_milli=64_000, memory_mib=262_144)
        cluster.add_node(node_of(machine), msgspec.convert(gpunode_of(machine), GPUNode))
    return cluster


def waiting_pod(name: str, core: int, cpu_milli: int = 100, **metadata: Any) -> dict[str, Any]:
    """A pod of ours with a controller that requests percent of GPUs: 100, 200, ... are whole ones."""
    gpus = max(1, core // 100) if core else 0
    job = Job(name, cpu_milli, 64, gpus, core * 10 // gpus if gpus else 0)
    pod = pod_of(name, job, names.SCHEDULER_NAME)
    pod["metadata"] |= {"ownerReferences": [OWNER], **metadata}
    return pod


def bound_pod(
    name: str,
    core: int,
    node: str,
    *gpus: int,
    movable: bool = True,
    memory_mib: int = GPU_MEMORY_MIB,
    **metadata: Any,
) -> dict[str, Any]:
    """The same pod, bound and running on these GPUs of the node."""
    said = {names.MOVABLE_ANNOTATION: "true"} if movable else {}
    pod = waiting_pod(name, core, **{"annotations": said, **metadata})
    each = core if core < 100 else 100
    memory = memory_mib * each // 100
    parts = tuple(Part(f"GPU-{node}-{at}", at, each, memory) for at in gpus)
    cluster = fragmented({})
    cluster.add_pod(pod)
    request = read(cluster, name).request
    made = bound(pod, node, to_annotations(Assignment({"main": parts}), request, node, 0, bound=True))
    made["status"] = {"phase": "Running"}
    return made


def read(cluster: OfflineCluster, name: str) -> ScheduledPod:
    """The pod as the scheduler stores it."""
    found = cluster.pods.get(f"default/{name}")
    assert isinstance(found, ScheduledPod)
    return found
