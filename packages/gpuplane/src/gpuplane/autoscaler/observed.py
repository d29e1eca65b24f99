"""Objects of the cluster as decisions of the autoscaler need them, small enough for 60,000 pods.

Pure functions, passed to informers as `keep`: an object is read once, and what no decision reads is dropped. The narrow
kinds of `kubekit.api` lack affinity and topology, so pods and DaemonSets are decoded here with their whole `spec`.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Final

import msgspec

from gpuplane import names
from gpuplane.autoscaler.asks import PodReading, read_pod
from gpuplane.sharing.assignment import Assignment, of_pod
from gpuplane.sharing.request import Request
from kubekit.api.core import DaemonSet, Pod
from kubekit.api.meta import ObjectMeta, Resource, Struct, to_dict
from kubekit.errors import InvalidInput
from kubekit.scheduling.podinfo import PodInfo, compile_pod

log = logging.getLogger("gpuplane.autoscaler")
_MIRROR: Final = "kubernetes.io/config.mirror"  # annotation of a static pod, which its kubelet made


class RawPod(Struct):
    """A pod with its whole `spec` and `status`."""

    RESOURCE: ClassVar[Resource] = Pod.RESOURCE

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class PodView(RawPod):
    """A pod that has not ended. Of its metadata only names, uid, version, creation and deletion are filled.

    `unschedulable`: the scheduler has tried it and found no node. `daemon` is the uid of its DaemonSet, empty for other
    pods. `mirror`: its kubelet made it, so it never moves. `assignment` is what it holds of a node's GPUs.
    """

    info: PodInfo | None = None
    request: Request = Request()
    trouble: str = ""
    unschedulable: bool = False
    daemon: str = ""
    mirror: bool = False
    assignment: Assignment | None = None

    @property
    def reading(self) -> PodReading:
        """Return the pod as an ask is made of it."""
        assert self.info is not None  # set by `view_pod`
        return self.info, self.request, self.trouble

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


def view_pod(pod: RawPod) -> PodView | None:
    """Return what is kept of a pod; None for a pod that has ended or is a validator's. Raises InvalidInput.

    A validator's pod has a GPU of a new node for a moment. A pod that waits for this node must not get another one.
    """
    meta = pod.metadata
    proves = meta.namespace == names.OPERATOR_NAMESPACE and meta.labels.get("app") == names.VALIDATION_POD
    if proves or pod.status.get("phase") in ("Succeeded", "Failed"):
        return None
    raw = {"metadata": {**to_dict(meta), "namespace": meta.namespace}, "spec": pod.spec, "status": pod.status}
    info, request, trouble = read_pod(raw)
    owners = meta.owner_references
    return PodView(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            creation_timestamp=meta.creation_timestamp,
            deletion_timestamp=meta.deletion_timestamp,
        ),
        info=info,
        request=request,
        trouble=trouble,
        unschedulable=not info.nominated and not info.gates and _is_unschedulable(pod.status),
        daemon=next((owner.uid for owner in owners if owner.kind == DaemonSet.RESOURCE.kind), ""),
        mirror=_MIRROR in meta.annotations or any(owner.kind == "Node" for owner in owners),
        assignment=_assignment(raw) if info.node_name and request else None,
    )


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
    """Return what is kept of a DaemonSet. Raises InvalidInput for an invalid quantity."""
    meta, template = daemon.metadata, daemon.spec.template
    pod_meta = {**(template.get("metadata") or {}), "name": meta.name, "namespace": meta.namespace}
    return DaemonView(
        metadata=ObjectMeta(
            name=meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=meta.resource_version
        ),
        info=compile_pod({"metadata": pod_meta, "spec": template.get("spec") or {}}),
    )
