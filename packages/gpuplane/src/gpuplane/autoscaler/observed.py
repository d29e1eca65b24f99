"""Objects of the cluster as decisions of the autoscaler need them, small enough for 60,000 pods.

Pure functions, passed to informers as `keep`: an object is read once, and what no decision reads is dropped. The narrow
kinds of `kubekit.api` lack affinity and topology, so pods and DaemonSets are decoded here with their whole `spec`.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, ClassVar, Final

import msgspec

from gpuplane import names
from gpuplane.api import nodeclaim
from gpuplane.autoscaler.asks import PodReading, read_pod
from gpuplane.autoscaler.volume_limits import AttachedVolumes
from gpuplane.autoscaler.volumes import PodVolumeClaim, VolumeFacts, claims_of, volume_terms
from gpuplane.sharing.assignment import Assignment, of_pod
from gpuplane.sharing.request import Request
from kubekit.api.core import DaemonSet, Pod, PodCondition, PodSpec, PodStatus, Toleration
from kubekit.api.interned import Interner
from kubekit.api.meta import ObjectMeta, Resource, Struct, to_dict
from kubekit.api.raw import RawPod
from kubekit.errors import InvalidInput
from kubekit.scheduling.podinfo import PodInfo, compile_pod
from kubekit.scheduling.shared_parts import shared_parts

log = logging.getLogger("gpuplane.autoscaler")
_MIRROR: Final = "kubernetes.io/config.mirror"  # annotation of a static pod, which its kubelet made
# Annotations of a pod that controllers of disruption and termination read.
_ANNOTATIONS: Final = frozenset(
    (_MIRROR, nodeclaim.DO_NOT_DISRUPT, nodeclaim.DO_NOT_EVICT, "controller.kubernetes.io/pod-deletion-cost")
)
_OWNERS: Final = frozenset((DaemonSet.RESOURCE.kind, "Node"))
_CONDITION_TYPES: Final = frozenset(("Ready", "PodScheduled"))


class PodView(Pod):
    """A pod, with the fields that some controller reads; containers and most annotations are left out.

    `info` is None for a pod that neither holds nor waits: it has ended, is a validator's, or cannot be read.
    `unschedulable`: the scheduler has tried it and found no node. `daemon` is the uid of its DaemonSet, empty for other
    pods. `mirror`: its kubelet made it, so it never moves. `assignment` is what it holds of a node's GPUs. `claims` are
    those of its volumes.
    """

    info: PodInfo | None = None
    request: Request = Request()
    trouble: str = ""
    unschedulable: bool = False
    daemon: str = ""
    mirror: bool = False
    assignment: Assignment | None = None
    claims: tuple[PodVolumeClaim, ...] = ()

    def reading(self, volumes: VolumeFacts, attached: AttachedVolumes | None = None) -> PodReading:
        """Return the pod as an ask is made of it.

        Args:
            attached: counts the volumes; without it nodes attach any number.
        """
        assert self.info is not None  # set by `view_pod`
        if not self.claims:
            return PodReading(self.info, self.request, self.trouble)
        terms, trouble = volume_terms(self.info.namespace, self.claims, volumes)
        counted = attached.of(self.info.namespace, self.claims) if attached is not None else ()
        return PodReading(self.info, self.request, self.trouble or trouble, terms, counted)

    @property
    def waits(self) -> bool:
        """Return whether a node may be bought for the pod: the scheduler said that none of those there takes it."""
        moves = not (self.daemon or self.mirror or self.metadata.deletion_timestamp)
        return moves and self.unschedulable and self.info is not None and not self.info.node_name

    @property
    def moves(self) -> bool:
        """Return whether the pod needs another node when its own goes."""
        stays = self.daemon or self.mirror or self.metadata.deletion_timestamp
        return not stays and self.info is not None and bool(self.info.node_name)


def view_pod(pod: RawPod) -> PodView:
    """Return the cached fields of a pod. Raises ValidationError for one whose fields are of other types.

    A validator's pod has a GPU of a new node for a moment. A pod that waits for this node must not get another one.
    """
    view = _lasting(pod)
    meta = pod.metadata
    proves = meta.namespace == names.OPERATOR_NAMESPACE and meta.labels.get("app") == names.VALIDATION_POD
    if proves or view.status.ended:
        return view
    raw = {"metadata": {**to_dict(meta), "namespace": meta.namespace}, "spec": pod.spec, "status": pod.status}
    try:
        info, request, trouble, *_ = read_pod(raw)
        claims = claims_of(meta.name, pod.spec)
    except (InvalidInput, KeyError, TypeError, AttributeError) as error:
        log.warning("pod not read, nothing is bought for it pod=%s/%s: %s", meta.namespace, meta.name, error)
        return view
    return msgspec.structs.replace(
        view,
        info=shared_parts(msgspec.structs.replace(info, images=())),  # no decision about nodes reads them
        request=_REQUESTS.same(request),
        trouble=trouble,
        unschedulable=not info.nominated and not info.gates and _is_unschedulable(pod.status),
        daemon=next((owner.uid for owner in meta.owner_references if owner.kind == DaemonSet.RESOURCE.kind), ""),
        mirror=_MIRROR in meta.annotations or any(owner.kind == "Node" for owner in meta.owner_references),
        assignment=_assignment(raw) if info.node_name and request else None,
        claims=_CLAIMS.same(claims) if claims else (),
    )


def _lasting(pod: RawPod) -> PodView:
    """Return what controllers need of any pod, also of one that has ended."""
    meta, spec, status = pod.metadata, pod.spec, pod.status
    return PodView(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=sys.intern(meta.namespace),
            uid=meta.uid,
            resource_version=meta.resource_version,
            creation_timestamp=meta.creation_timestamp,
            deletion_timestamp=meta.deletion_timestamp,
            labels=_LABELS.same(meta.labels),
            annotations=_LABELS.same({key: text for key, text in meta.annotations.items() if key in _ANNOTATIONS}),
            owner_references=tuple(owner for owner in meta.owner_references if owner.kind in _OWNERS),
        ),
        spec=_SPECS.same(
            PodSpec(
                node_name=spec.get("nodeName") or "",
                tolerations=msgspec.convert(spec.get("tolerations") or (), tuple[Toleration, ...]),
                priority=spec.get("priority"),
                priority_class_name=spec.get("priorityClassName") or "",
                termination_grace_period_seconds=spec.get("terminationGracePeriodSeconds"),
            )
        ),
        status=PodStatus(
            phase=sys.intern(status.get("phase") or ""),
            start_time=status.get("startTime"),
            conditions=_CONDITIONS.same(
                tuple(
                    msgspec.structs.replace(one, message="")
                    for one in msgspec.convert(status.get("conditions") or (), tuple[PodCondition, ...])
                    if one.type in _CONDITION_TYPES
                )
            ),
        ),
    )


_LABELS: Final[Interner[dict[str, str]]] = Interner()
_REQUESTS: Final[Interner[Request]] = Interner()
_CLAIMS: Final[Interner[tuple[PodVolumeClaim, ...]]] = Interner()
_SPECS: Final[Interner[PodSpec]] = Interner()
_CONDITIONS: Final[Interner[tuple[PodCondition, ...]]] = Interner()


def _is_unschedulable(status: dict[str, Any]) -> bool:
    return any(
        one.get("type") == "PodScheduled" and one.get("status") == "False" and one.get("reason") == "Unschedulable"
        for one in status.get("conditions") or ()
    )


def _assignment(raw: dict[str, Any]) -> Assignment | None:
    try:
        return of_pod(msgspec.convert(raw, Pod))  # NB: the request of a view has no names of containers
    except InvalidInput as error:
        log.warning("%s", error)
        return None


class RawDaemonSetSpec(Struct):
    """`spec` of a DaemonSet with its whole template."""

    template: dict[str, Any] = {}


class RawDaemonSet(Struct):
    """A DaemonSet with its whole template."""

    RESOURCE: ClassVar[Resource] = DaemonSet.RESOURCE

    metadata: ObjectMeta = ObjectMeta()
    spec: RawDaemonSetSpec = RawDaemonSetSpec()


class DaemonView(RawDaemonSet):
    """A DaemonSet as its pod on a new node; `uid` tells its pods from others."""

    info: PodInfo | None = None


def view_daemon(daemon: RawDaemonSet) -> DaemonView:
    """Return the cached fields of a DaemonSet. Raises InvalidInput for an invalid quantity."""
    meta, template = daemon.metadata, daemon.spec.template
    pod_meta = {**(template.get("metadata") or {}), "name": meta.name, "namespace": meta.namespace}
    return DaemonView(
        metadata=ObjectMeta(
            name=meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=meta.resource_version
        ),
        info=compile_pod({"metadata": pod_meta, "spec": template.get("spec") or {}}),
    )
