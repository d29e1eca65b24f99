"""Reads the facts of a node that ends from the cluster's objects. Pure; values that need a request are arguments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

import msgspec

from gpuplane.api import nodeclaim
from gpuplane.api.durations import duration
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.api.upgrade import unix_time
from gpuplane.autoscaler.providers.provider import CloudInstance
from gpuplane.autoscaler.termination.claim_conditions import holds
from gpuplane.autoscaler.termination.facts import DEFAULT_GRACE_SECONDS, DrainPod, EndingNode, InstanceState
from kubekit.api.core import Node, Pod, Toleration
from kubekit.api.kinds import built_in
from kubekit.api.meta import ObjectMeta, Resource, Struct

EXCLUDE_LABEL: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"  # of a static pod, which cannot be evicted
_CRITICAL: Final = ("system-cluster-critical", "system-node-critical")


class AttachedSource(Struct):
    """`spec.source` of a VolumeAttachment."""

    persistent_volume_name: str = ""


class VolumeAttachmentSpec(Struct):
    """`spec` of a VolumeAttachment."""

    node_name: str = ""
    source: AttachedSource = AttachedSource()


class VolumeAttachment(Struct):
    """A volume that is attached to a node."""

    RESOURCE: ClassVar[Resource] = built_in("storage.k8s.io/v1", "VolumeAttachment")

    metadata: ObjectMeta = ObjectMeta()
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()


class VolumeClaimSpec(Struct):
    """`spec` of a PersistentVolumeClaim."""

    volume_name: str = ""


class VolumeClaim(Struct):
    """A PersistentVolumeClaim: the volume that it is bound to."""

    RESOURCE: ClassVar[Resource] = built_in("v1", "PersistentVolumeClaim")

    metadata: ObjectMeta = ObjectMeta()
    spec: VolumeClaimSpec = VolumeClaimSpec()


class ClaimedVolume(Struct):
    """`persistentVolumeClaim` of a pod's volume."""

    claim_name: str = ""


class ClaimingVolume(Struct):
    """A volume of a pod. The claim of an `ephemeral` one is called as the pod and the volume."""

    name: str = ""
    persistent_volume_claim: ClaimedVolume | None = None
    ephemeral: dict[str, Any] | None = None

    def claim_of(self, pod: str) -> str:
        """Return the name of its claim; empty for a volume without one."""
        if self.persistent_volume_claim is not None:
            return self.persistent_volume_claim.claim_name
        return f"{pod}-{self.name}" if self.ephemeral is not None else ""


class ClaimingSpec(Struct):
    """`spec` of a pod: its volumes."""

    volumes: tuple[ClaimingVolume, ...] = ()


class ClaimingPod(Struct):
    """A pod with the claims of its volumes. Informers leave volumes out, for they would double the memory of a pod."""

    RESOURCE: ClassVar[Resource] = Pod.RESOURCE

    metadata: ObjectMeta = ObjectMeta()
    spec: ClaimingSpec = ClaimingSpec()


class EvictionRecord(msgspec.Struct, frozen=True):
    """The last eviction of a pod that was refused: when the next one is due, the tries so far, and why."""

    after: float
    tries: int
    refusal: str


def ending_node(
    claim: NodeClaim,
    node: Node | None,
    pods: Iterable[Pod],
    *,
    instance: CloudInstance | InstanceState,
    attached: tuple[str, ...] | None,
    evictions: Mapping[str, EvictionRecord],
) -> EndingNode:
    """Return the facts about a claim that is being deleted; `pods` are those of its node."""
    meta, node_meta = claim.metadata, node.metadata if node is not None else ObjectMeta()
    state = instance if isinstance(instance, InstanceState) else instance_state(instance)
    return EndingNode(
        claim=meta.name,
        began=unix_time(meta.deletion_timestamp or "") or 0.0,
        deadline=deadline_of(claim),
        node=node_meta.name,
        node_ready=node is not None and is_ready(node),
        node_deleted=bool(node_meta.deletion_timestamp),
        marked=node is not None and is_marked(node),
        finalized=nodeclaim.FINALIZER in node_meta.finalizers,
        pods=tuple(drain_pod(pod, evictions.get(pod.metadata.uid)) for pod in pods),
        attached=attached,
        launched=bool(claim.status.provider_id),
        instance=state,
        asked_cloud=holds(claim, nodeclaim.INSTANCE_TERMINATING),
    )


def drain_pod(pod: Pod, refused: EvictionRecord | None = None) -> DrainPod:
    """Return the facts about a pod on a node that ends."""
    meta, spec = pod.metadata, pod.spec
    grace = spec.termination_grace_period_seconds
    return DrainPod(
        name=f"{meta.namespace}/{meta.name}",
        uid=meta.uid,
        daemon=is_daemon(pod),
        critical=spec.priority_class_name in _CRITICAL,
        mirror=is_mirror(pod),
        ended=pod.status.ended,
        tolerates=tolerates_disruption(spec.tolerations),
        held_until=hold_end(pod),
        deleted=unix_time(meta.deletion_timestamp) if meta.deletion_timestamp else None,
        grace=DEFAULT_GRACE_SECONDS if grace is None else float(grace),
        evict_after=refused.after if refused is not None else 0.0,
        refusal=refused.refusal if refused is not None else "",
    )


def deadline_of(claim: NodeClaim) -> float | None:
    """Return when pods and volumes of a claim that is being deleted are no longer waited for; None for never.

    The annotation is that of a forced end. Without it the claim's own grace counts from its deletion.
    """
    if text := claim.metadata.annotations.get(nodeclaim.TERMINATION_ANNOTATION):
        found = unix_time(text)
        if found is not None:
            return found
    grace = duration(claim.spec.termination_grace_period) if claim.spec.termination_grace_period else None
    began = unix_time(claim.metadata.deletion_timestamp or "")
    return began + grace if began is not None and grace is not None else None


def is_ready(node: Node) -> bool:
    """Return whether the node's kubelet answers."""
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)


def is_marked(node: Node) -> bool:
    """Return whether a node has the taint and the label of nodes that end."""
    tainted = any(one.key == nodeclaim.DISRUPTED_TAINT and one.effect == "NoSchedule" for one in node.spec.taints)
    return tainted and EXCLUDE_LABEL in node.metadata.labels


def is_daemon(pod: Pod) -> bool:
    """Return whether a DaemonSet made the pod."""
    return any(owner.kind == "DaemonSet" and owner.controller for owner in pod.metadata.owner_references)


def is_mirror(pod: Pod) -> bool:
    """Return whether the pod is the image of a static pod, which ends with its node only."""
    return MIRROR_ANNOTATION in pod.metadata.annotations or any(
        owner.kind == "Node" for owner in pod.metadata.owner_references
    )


def hold_end(pod: Pod) -> float:
    """Return until when the pod's annotation forbids to disrupt it: 0.0 for not at all, infinite for always.

    The annotation is "true", or a duration that counts from the pod's start; the name of v1alpha5 takes "true" only.
    """
    text = pod.metadata.annotations.get(nodeclaim.DO_NOT_DISRUPT, "")
    if "true" in (text, pod.metadata.annotations.get(nodeclaim.DO_NOT_EVICT)):
        return math.inf
    seconds = duration(text) if text else None
    started = unix_time(pod.status.start_time or pod.metadata.creation_timestamp)
    return started + seconds if seconds and started is not None else 0.0


def held_by(pod: Pod) -> str:
    """Return the annotation that forbids to disrupt a pod, by the name that the pod has."""
    old = pod.metadata.annotations.get(nodeclaim.DO_NOT_EVICT) == "true"
    new = nodeclaim.DO_NOT_DISRUPT in pod.metadata.annotations
    return nodeclaim.DO_NOT_EVICT if old and not new else nodeclaim.DO_NOT_DISRUPT


def tolerates_disruption(tolerations: Iterable[Toleration]) -> bool:
    """Return whether a pod tolerates the taint of nodes that end."""
    return any(
        one.effect in ("", "NoSchedule")
        and one.key in ("", nodeclaim.DISRUPTED_TAINT)
        and (one.operator == "Exists" or (bool(one.key) and not one.value))
        for one in tolerations
    )


def instance_state(instance: CloudInstance | None) -> InstanceState:
    """Return the state of an instance; None stands for one that the cloud does not list."""
    if instance is None or instance.state == "gone":
        return InstanceState.GONE
    return InstanceState.ENDING if instance.state == "stopping" else InstanceState.RUNNING
