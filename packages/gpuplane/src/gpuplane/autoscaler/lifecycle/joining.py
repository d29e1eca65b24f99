"""A node that joins, decided: what it gets when it registers, and what its initialisation waits for. Pure.

Source of labels, taints and conditions: the behaviour of Karpenter 1.14. That a GPU node also waits for gpuplane's own
stages is ours: before them its GPUs are not proved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuplane import names
from gpuplane.api import nodeclaim
from gpuplane.api.gpunode import GPUNode, StageName, current_stage
from gpuplane.api.nodeclaim import UNREGISTERED_TAINT, NodeClaim
from gpuplane.autoscaler.nodes import is_ephemeral, is_true
from kubekit.api.core import Node, Taint
from kubekit.api.meta import OwnerReference, to_dict
from kubekit.api.quantity import whole

DO_NOT_SYNC_TAINTS: Final = "karpenter.sh/do-not-sync-taints"  # "true" on a node: its taints are not set by its claim
_CLAIM_ONLY: Final = (names.PREDICTED_ANNOTATION,)  # annotations that a node does not get


def registration_patch(claim: NodeClaim, node: Node) -> dict[str, Any]:
    """Return the patch by which a node becomes the claim's: labels, annotations, taints, finalizer, owner."""
    meta = node.metadata
    owner = OwnerReference(
        api_version=NodeClaim.RESOURCE.api_version,
        kind=NodeClaim.RESOURCE.kind,
        name=claim.metadata.name,
        uid=claim.metadata.uid,
        block_owner_deletion=True,
    )
    owners = [one for one in meta.owner_references if one.uid != claim.metadata.uid]
    finalizers = [*meta.finalizers, *(f for f in (nodeclaim.FINALIZER,) if f not in meta.finalizers)]
    annotations = {key: text for key, text in claim.metadata.annotations.items() if key not in _CLAIM_ONLY}
    patch: dict[str, Any] = {
        "metadata": {
            "labels": {**claim.metadata.labels, nodeclaim.REGISTERED_LABEL: "true"},
            "annotations": annotations,
            "finalizers": finalizers,
            "ownerReferences": to_dict((*owners, owner)),
        }
    }
    taints = registered_taints(claim, node)
    if taints != node.spec.taints:
        patch["spec"] = {"taints": to_dict(taints)}
    return patch


def registered_taints(claim: NodeClaim, node: Node) -> tuple[Taint, ...]:
    """Return the taints of a node that is registered: its own without the unregistered one, and the claim's."""
    others = [taint for taint in node.spec.taints if taint.key != UNREGISTERED_TAINT]
    if node.metadata.labels.get(DO_NOT_SYNC_TAINTS) == "true":
        return tuple(others)
    known = {(taint.key, taint.effect) for taint in others}
    wanted = (*claim.spec.taints, *claim.spec.startup_taints)
    return (*others, *(taint for taint in wanted if (taint.key, taint.effect) not in known))


def lacks_unregistered_taint(node: Node) -> bool:
    """Return whether a node that is not registered yet came without the taint that holds pods off until it is."""
    if nodeclaim.REGISTERED_LABEL in node.metadata.labels:
        return False
    return all(taint.key != UNREGISTERED_TAINT for taint in node.spec.taints)


def why_not_initialized(claim: NodeClaim, node: Node, gpunode: GPUNode | None, *, prepared: bool) -> tuple[str, str]:
    """Return (reason, message) why a registered node is not initialised yet; both empty if it is.

    Args:
        prepared: whether gpuplane prepares GPU nodes in this cluster.
    """
    if not is_true(node.status.conditions, "Ready"):
        return "NodeNotReady", "the node is not Ready"
    startup = {(taint.key, taint.effect) for taint in claim.spec.startup_taints}
    for taint in node.spec.taints:
        if (taint.key, taint.effect) in startup:
            return "StartupTaintsExist", f"the startup taint {taint.key} is on the node; its owner takes it off"
        if is_ephemeral(taint):
            return "KnownEphemeralTaintsExist", f"the taint {taint.key} is on the node"
    for name, amount in claim.spec.resources.requests.items():
        # NB: what the claim's pods ask for; zero is a resource that the device plugin has not reported yet.
        if name != "pods" and whole(amount) > 0 and whole(node.status.allocatable.get(name, 0)) == 0:
            return "ResourceNotRegistered", f"the node does not offer {name} yet"
    if prepared and _has_gpus(claim):
        stage = current_stage(gpunode.status.stages) if gpunode is not None else StageName.DISCOVERED
        if gpunode is None or not _is_ready(gpunode):
            return "NodeNotPrepared", f"gpuplane prepares the node: stage {stage.value}"
    return "", ""


def _is_ready(gpunode: GPUNode) -> bool:
    stage = gpunode.status.stages.get(StageName.READY.value)
    return stage is not None and stage.state.holds


def _has_gpus(claim: NodeClaim) -> bool:
    return any(name.startswith(("nvidia.com/", "tencent.com/vcuda-")) for name in claim.status.capacity)


def initialized_status(claim: NodeClaim, node: Node) -> Mapping[str, Any]:
    """Return the fields of the claim's status that an initialised node fills: its real figures, as a merge patch."""
    old, new = claim.status, node.status
    return {
        "capacity": {**dict.fromkeys(old.capacity), **new.capacity},
        "allocatable": {**dict.fromkeys(old.allocatable), **new.allocatable},
    }
