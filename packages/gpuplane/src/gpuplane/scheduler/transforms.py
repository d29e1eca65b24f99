"""Transforms Pods, Nodes and GPUNodes for the extender's cache: 5,000 nodes and 60,000 pods have to be small.

Pure functions, passed to informers as `keep`. A pod is parsed here once, into its request and its assignment; the other
fields are dropped. Of bound pods without GPUs only the CPU and memory remain, and pods that have ended are not cached.
"""

from __future__ import annotations

import logging
import sys
from decimal import Decimal
from functools import lru_cache
from typing import Final, TypeVar

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPUNode, GPUNodeStatus, Link
from gpuplane.api.offers import counted_by_scheduler, part_of_gpu
from gpuplane.api.requests import uses_gpus
from gpuplane.scheduler.drift import Given, by_pod
from gpuplane.scheduler.quota import QuotaPlace, QuotaSettings
from gpuplane.sharing import Assignment, LedgerGPU, Part, Request, gpus_of, host_request, of_pod, request_of
from gpuplane.sharing.findings import MEMORY_UNIT_MIB
from kubekit.api.core import Node, NodeSpec, NodeStatus, Pod, PodSpec, PodStatus
from kubekit.api.meta import ObjectMeta
from kubekit.api.quantity import Quantity, parse_quantity, whole
from kubekit.errors import InvalidInput

log = logging.getLogger("gpuplane.scheduler")
S = TypeVar("S")

_ENDED_STATUS: Final = PodStatus()


class CachedPod(Pod):
    """A pod that asks for GPUs. Of its metadata and spec only names, uid, version, node and priority are filled.

    The `request` of a bound pod without GPUs is empty but for CPU and memory. `assignment` is what it holds if it is
    bound, what it was promised in filter-only mode if it is not; None where its annotations say nothing that can be
    believed.
    """

    request: Request = Request()
    assignment: Assignment | None = None

    @property
    def shown(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"


def transform_pod(pod: Pod) -> CachedPod | None:
    if pod.status.ended or not uses_gpus(pod):
        return None
    try:
        request = _same(request_of(pod))
    except InvalidInput:
        return None  # can never run; filter says so when it is asked
    if not request:
        return None
    try:
        assignment = _shared(of_pod(pod, request))
    except InvalidInput as error:
        if pod.spec.node_name:
            log.warning("%s", error)
        assignment = None
    meta = pod.metadata
    return CachedPod(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=sys.intern(meta.namespace),
            uid=sys.intern(meta.uid),
            resource_version=meta.resource_version,
            deletion_timestamp=meta.deletion_timestamp,
        ),
        spec=_spec(sys.intern(pod.spec.node_name), pod.spec.priority or 0),
        status=_ENDED_STATUS,
        request=request,
        assignment=assignment,
    )


def transform_any_pod(pod: Pod) -> CachedPod | None:
    """Return the stored part of a pod, also of a bound pod that requests no GPUs: its node has less CPU and memory."""
    if pod.status.ended:
        return None
    found = transform_pod(pod)
    if found is not None or not pod.spec.node_name:
        return found
    meta = pod.metadata
    return CachedPod(
        metadata=ObjectMeta(
            name=meta.name, namespace=sys.intern(meta.namespace), uid=meta.uid, resource_version=meta.resource_version
        ),
        spec=_spec(sys.intern(pod.spec.node_name), pod.spec.priority or 0),
        status=_ENDED_STATUS,
        request=host_request(pod),
    )


@lru_cache(maxsize=8192)
def _same(value: S) -> S:
    """Return the same object for all equal values: a cluster has few different requests and GPU models."""
    return value


@lru_cache(maxsize=16384)
def _spec(node: str, priority: int) -> PodSpec:
    return PodSpec(node_name=node, priority=priority)


def _shared(assignment: Assignment | None) -> Assignment | None:
    """Return the assignment with its strings shared: thousands of pods name the same GPUs, nodes and containers."""
    if assignment is None:
        return None
    return Assignment(
        {
            sys.intern(name): tuple(
                Part(sys.intern(part.uuid), part.index, part.core, part.memory_mib) for part in parts
            )
            for name, parts in assignment.containers.items()
        },
        _same(assignment.init),
        sys.intern(assignment.node),
    )


# -- nodes ---------------------------------------------------------------------------------------------------------
class CachedNode(Node):
    """A node: whether it is Ready, what its labels say to quotas, GPUs that only its capacity tells of, what its
    capacity calls GPUs, and the CPU and memory for pods (None if it reports none).
    """

    ready: bool = False
    labels: dict[str, str] = {}
    gpus: tuple[LedgerGPU, ...] = ()
    devices: tuple[tuple[str, Quantity], ...] = ()
    cpu_milli: int | None = None
    host_memory_mib: int | None = None


def transform_node(node: Node) -> CachedNode:
    return CachedNode(
        metadata=ObjectMeta(
            name=sys.intern(node.metadata.name),
            uid=node.metadata.uid,
            resource_version=node.metadata.resource_version,
        ),
        spec=_NO_SPEC,
        status=_NO_STATUS,
        ready=any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions),
        labels={sys.intern(name): sys.intern(value) for name, value in node.metadata.labels.items()},
        gpus=_gpus_of_capacity(node),
        devices=_same(
            tuple((name, node.status.capacity[name]) for name in sorted(node.status.capacity) if _device(name))
        ),
        cpu_milli=_allocatable(node, "cpu", _MILLI),
        host_memory_mib=_allocatable(node, "memory", _PER_MIB),
    )


_MILLI: Final = Decimal(1000)
_PER_MIB: Final = 1 / Decimal(2**20)


def _allocatable(node: Node, resource: str, factor: Decimal) -> int | None:
    value = node.status.allocatable.get(resource)
    try:
        return None if value is None else int(parse_quantity(value) * factor)
    except (InvalidInput, ArithmeticError):
        return None


def _device(resource: str) -> bool:
    return resource.startswith(names.NVIDIA_PREFIX) or resource == names.VCUDA_CORE


def by_count(node: CachedNode, gpus: tuple[LedgerGPU, ...]) -> bool:
    """Return whether kube-scheduler counts the node's `nvidia.com/gpu`, since they are not whole GPUs."""
    try:
        return counted_by_scheduler(dict(node.devices), gpus)
    except InvalidInput:
        return False


_NO_SPEC: Final = NodeSpec()
_NO_STATUS: Final = NodeStatus()


def place_of(node: CachedNode, naming: QuotaSettings, gpus: tuple[LedgerGPU, ...] = ()) -> QuotaPlace:
    """Return the labels of the node that quotas use, and what one `nvidia.com/gpu` of its GPUs is worth."""
    try:
        part = part_of_gpu(dict(node.devices), gpus)
    except InvalidInput:
        part = 100
    return QuotaPlace(node.labels.get(naming.model_label, ""), node.labels.get(naming.pool_label, ""), part)


def _gpus_of_capacity(node: Node) -> tuple[LedgerGPU, ...]:
    """Return the equal GPUs of a node that another device plugin (gpu-manager's) advertises, by its capacity.

    Their identity is their place, node/index; gpu-manager reports no UUIDs. Nodes that gpuplane prepares have a
    GPUNode.
    """
    if node.metadata.labels.get(names.GPU_PRESENT_LABEL) == "true":
        return ()
    try:
        cores = whole(node.status.capacity.get(names.VCUDA_CORE, 0))
        memory = whole(node.status.capacity.get(names.VCUDA_MEMORY, 0))
    except InvalidInput:
        return ()
    count = min(cores // 100, _MOST_GPUS)
    if count <= 0:
        return ()
    model = node.metadata.labels.get(names.QUOTA_MODEL_LABEL, "")
    each = memory * MEMORY_UNIT_MIB // count
    name = node.metadata.name
    return tuple(LedgerGPU(index=at, uuid=f"{name}/{at}", model=model, memory_mib=each) for at in range(count))


_MOST_GPUS: Final = 64


class CachedGPUNode(GPUNode):
    """A GPUNode's GPUs, as the ledger takes them, and what the node gave, by the pod's uid."""

    gpus: tuple[LedgerGPU, ...] = ()
    given: dict[str, Given] = {}


def transform_gpunode(node: GPUNode) -> CachedGPUNode:
    gpus = tuple(
        LedgerGPU(
            index=gpu.index,
            uuid=sys.intern(gpu.uuid),
            model=sys.intern(gpu.model),
            memory_mib=gpu.memory_mib,
            mig=gpu.mig,
            numa=gpu.numa,
            links=_same_links(gpu.links),
            fault=gpu.fault,
        )
        for gpu in gpus_of(node)
    )
    meta = ObjectMeta(
        name=sys.intern(node.metadata.name), uid=node.metadata.uid, resource_version=node.metadata.resource_version
    )
    given = {
        sys.intern(uid): tuple((sys.intern(uuid), core) for uuid, core in parts)
        for uid, parts in by_pod(node.status.held).items()
    }
    return CachedGPUNode(metadata=meta, status=_NO_GPU_STATUS, gpus=gpus, given=given)


_NO_GPU_STATUS: Final = GPUNodeStatus()


@lru_cache(maxsize=1024)
def _same_links(links: tuple[Link, ...]) -> tuple[Link, ...]:
    return links


def with_place(pod: CachedPod, node: str, assignment: Assignment | None) -> CachedPod:
    """Return the pod as if it were bound to `node`."""
    return msgspec.structs.replace(pod, spec=_spec(node, pod.spec.priority or 0), assignment=assignment)
