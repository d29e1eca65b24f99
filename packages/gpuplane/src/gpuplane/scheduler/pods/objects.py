"""Pods and nodes as the pod scheduler needs them: what the extender stores, and what kube-scheduler's filters read.

Pure functions, passed to informers as `keep`. The narrow kinds of `kubekit.api` lack affinity and topology, so both
kinds are decoded here with their whole `spec`. Of a pod that is neither bound nor nominated nor given to this scheduler
only the extender's part remains.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.scheduler.gangs.gang import DeclaredGang, declared_gang, round_of
from gpuplane.scheduler.pods.movable import MoveOrder, controller_of, order_of, stays
from gpuplane.scheduler.queues.fair import with_local_queue
from gpuplane.scheduler.transforms import CachedNode, CachedPod, transform_any_pod, transform_node
from gpuplane.sharing import Request, host_request, kind_of, request_of
from gpuplane.sharing.unsupported import unsupported
from kubekit.api.core import Node, Pod, has_ended
from kubekit.api.meta import ObjectMeta, to_dict
from kubekit.api.raw import RawNode, RawPod
from kubekit.errors import InvalidInput
from kubekit.scheduling.podinfo import NodeFacts, PodInfo, compile_node, compile_pod
from kubekit.scheduling.shared_parts import shared_parts

_NUMBERS: Final = frozenset(
    {"batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index", "statefulset.kubernetes.io/pod-name"}
)
log = logging.getLogger("gpuplane.scheduler")


class ScheduledPod(CachedPod):
    """A pod. `info` is None for a pod that waits for another scheduler, or that cannot be read.

    `ours`: it names this scheduler. `trouble`: why it cannot be placed whatever the cluster has. `said`: reason and
    message of its condition PodScheduled, if that is False. `kind` is equal for pods that are decided alike.

    `gang` is the one that it declares. Of a bound pod of a gang, `gang_round` are the digests of the pods that were
    bound with it, and `bound_at` is the time of its Binding.

    `owner` is the uid of its controller. Of a bound pod, `stays` says why it may not be moved (empty: it may), `order`
    is the order to move it, and `moved_at` the times at which pods were evicted that it follows. A bound pod has a
    `kind` only if it may be moved.
    """

    info: PodInfo | None = None
    ours: bool = False
    trouble: str = ""
    said: tuple[str, str] = ("", "")
    kind: bytes = b""
    gang: DeclaredGang | None = None
    gang_round: frozenset[str] = frozenset()
    bound_at: str = ""
    owner: str = ""
    stays: str = ""
    order: MoveOrder | None = None
    moved_at: str = ""


class ScheduledNode(CachedNode):
    """A node. `facts` is None for a node that cannot be read."""

    facts: NodeFacts | None = None


def transform_scheduled_pod(scheduler_name: str) -> Callable[[RawPod], ScheduledPod | None]:
    """Return the transformation of pods for a scheduler of this name."""

    def transform(raw: RawPod) -> ScheduledPod | None:
        if has_ended(raw.status.get("phase")):
            return None
        meta = to_dict(raw.metadata)
        meta.setdefault("namespace", "")
        data = {"metadata": meta, "spec": raw.spec, "status": raw.status}
        pod = msgspec.convert(data, Pod)
        cached = transform_any_pod(pod)
        bound = bool(pod.spec.node_name)
        ours = not bound and pod.spec.scheduler_name == scheduler_name
        info, trouble = None, ""
        if bound or ours or raw.status.get("nominatedNodeName"):
            try:
                info = shared_parts(compile_pod(data))
            except (InvalidInput, KeyError, TypeError, AttributeError, ValueError) as error:
                log.warning("pod cannot be read pod=%s/%s: %s", raw.metadata.namespace, raw.metadata.name, error)
        if bound and info is not None and names.BOUND_QUEUE_ANNOTATION in pod.metadata.annotations:
            info = with_local_queue(info, pod.metadata.annotations[names.BOUND_QUEUE_ANNOTATION])
        gang, wrong = _gang(meta, raw.spec) if ours or bound else (None, "")
        if ours:
            trouble = unsupported(meta, raw.spec) or _invalid(pod, info) or wrong
        if cached is None:
            if not ours:
                return None
            cached = _without_gpus(pod)
        stuck = stays(pod, meta, raw.spec) if bound else ""
        moved = pod.metadata.annotations.get(names.MOVED_ANNOTATION, "") if bound else ""
        return ScheduledPod(
            metadata=cached.metadata,
            spec=cached.spec,
            status=cached.status,
            request=cached.request,
            assignment=cached.assignment,
            info=info,
            ours=ours,
            trouble=trouble,
            said=_said(pod) if ours else ("", ""),
            kind=_kind(info, cached.request) if info is not None and (ours or (bound and not stuck)) else b"",
            gang=gang,
            gang_round=round_of(pod.metadata.annotations) if gang is not None and bound else frozenset(),
            bound_at=_bound_at(pod) if gang is not None and bound else "",
            owner=sys.intern(controller_of(pod)) if ours or moved or (bound and not stuck) else "",
            stays=stuck,
            order=order_of(pod.metadata.annotations) if bound else None,
            moved_at=moved,
        )

    return transform


def transform_scheduled_node(raw: RawNode) -> ScheduledNode:
    data = {"metadata": to_dict(raw.metadata), "spec": raw.spec, "status": raw.status}
    cached = transform_node(msgspec.convert(data, Node))
    try:
        facts = compile_node(data)
    except (InvalidInput, KeyError, TypeError, AttributeError, ValueError) as error:
        log.warning("node left out, since it cannot be read node=%s: %s", raw.metadata.name, error)
        facts = None
    return ScheduledNode(
        metadata=cached.metadata,
        spec=cached.spec,
        status=cached.status,
        ready=cached.ready,
        labels=cached.labels,
        gpus=cached.gpus,
        devices=cached.devices,
        cpu_milli=cached.cpu_milli,
        host_memory_mib=cached.host_memory_mib,
        facts=facts,
    )


def _invalid(pod: Pod, info: PodInfo | None) -> str:
    """Return why the pod can never run; empty for a valid one."""
    if info is None:
        return "a field of the pod cannot be read"
    try:
        request_of(pod)
    except InvalidInput as error:
        return "; ".join(error.findings) or error.what
    return ""


def _gang(metadata: dict[str, Any], spec: dict[str, Any]) -> tuple[DeclaredGang | None, str]:
    """Return the gang that the pod declares, and what is wrong with the declaration."""
    try:
        return declared_gang(metadata, spec), ""
    except InvalidInput as error:
        return None, str(error)


def _bound_at(pod: Pod) -> str:
    return next((one.last_transition_time or "" for one in pod.status.conditions if one.type == "PodScheduled"), "")


def _without_gpus(pod: Pod) -> CachedPod:
    """Return the stored part of a waiting pod that requests no GPUs, or whose request is invalid."""
    meta = pod.metadata
    return CachedPod(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=sys.intern(meta.namespace),
            uid=meta.uid,
            resource_version=meta.resource_version,
            deletion_timestamp=meta.deletion_timestamp,
        ),
        request=host_request(pod),
    )


def _kind(info: PodInfo, request: Request) -> bytes:
    """Return what decides about the pod: all but its names, its place, its age and the names of its containers."""
    alike = msgspec.structs.replace(
        info, name="", uid="", created="", node_name="", nominated="" if info.node_name else info.nominated
    )
    return msgspec.msgpack.encode((msgspec.structs.replace(alike, terminating=False), kind_of(request)))


def kind_without_number(pod: ScheduledPod) -> bytes:
    """Return the kind of a pod without the labels that give each pod of a Job or StatefulSet a number of its own."""
    if pod.info is None:
        return pod.kind
    labels = {name: value for name, value in pod.info.labels.items() if name not in _NUMBERS}
    return _kind(msgspec.structs.replace(pod.info, labels=labels), pod.request)


def _said(pod: Pod) -> tuple[str, str]:
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.reason, condition.message
    return "", ""
