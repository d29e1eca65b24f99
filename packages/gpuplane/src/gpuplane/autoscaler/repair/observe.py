"""Reads the facts about broken nodes from the cluster's objects. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.nodeclaim import INITIALIZED, NodeClaim
from gpuplane.api.upgrade import unix_time
from gpuplane.autoscaler.disruption.observe import is_leaving, is_workload
from gpuplane.autoscaler.repair.decide import GPU_PATIENCE_SECONDS, KUBELET_PATIENCE_SECONDS, SickNode
from gpuplane.autoscaler.termination.claim_conditions import condition_of_claim, holds
from gpuplane.autoscaler.termination.observe import tolerates_disruption
from kubekit.api.core import Node, Pod

REBOOTING: Final = "Rebooting"  # condition of a claim, from the decision until the node works again
REBOOTING_TAINT: Final = "karpenter.sh/rebooting"
DO_NOT_REPAIR: Final = "karpenter.sh/do-not-repair"  # annotation "true" of a node or a claim
BOOT_ANNOTATION: Final = "karpenter.sh/reboot-pre-boot-id"  # on a claim: the boot id before the restart
_TRUE: Final = "true"


def sick_node(claim: NodeClaim, node: Node, gpunode: GPUNode | None, pods: Iterable[Pod]) -> SickNode:
    """Return the facts about an initialised claim; `pods` are those of its node."""
    symptom, since, patience, reboots = symptom_of(node, gpunode)
    rebooting = condition_of_claim(claim, REBOOTING)
    begun = rebooting is not None and rebooting.status == "True"
    notes = claim.metadata.annotations
    before = notes.get(BOOT_ANNOTATION, "")
    return SickNode(
        claim=claim.metadata.name,
        symptom=symptom,
        since=since,
        patience=patience,
        reboots=reboots,
        requested=unix_time(rebooting.last_transition_time) if begun and rebooting is not None else None,
        issued=unix_time(notes.get(names.REBOOT_ISSUED_ANNOTATION, "")) if begun else None,
        restarted=bool(before) and node.status.node_info.boot_id != before,
        occupied=any(is_workload(pod) and not tolerates_disruption(pod.spec.tolerations) for pod in pods),
        kept=_TRUE in (node.metadata.annotations.get(DO_NOT_REPAIR), notes.get(DO_NOT_REPAIR)),
        leaving=is_leaving(claim, node) or not holds(claim, INITIALIZED),
    )


def symptom_of(node: Node, gpunode: GPUNode | None) -> tuple[str, float, float, bool]:
    """Return (symptom, since when, patience, whether a restart may cure it); an empty symptom for a node that works."""
    ready = next((one for one in node.status.conditions if one.type == "Ready"), None)
    if ready is None or ready.status != "True":
        since = unix_time(ready.last_transition_time) if ready is not None else None
        created = unix_time(node.metadata.creation_timestamp) or 0.0
        status = ready.status if ready is not None else "absent"
        return f"Ready is {status}", created if since is None else since, KUBELET_PATIENCE_SECONDS, False
    conditions = gpunode.status.conditions if gpunode is not None else ()
    healthy = next((one for one in conditions if one.type == "GPUsHealthy"), None)
    if healthy is not None and healthy.status == "False":
        since = unix_time(healthy.last_transition_time) or 0.0
        return f"GPUsHealthy is False: {healthy.message}", since, GPU_PATIENCE_SECONDS, True
    return "", 0.0, 0.0, False
