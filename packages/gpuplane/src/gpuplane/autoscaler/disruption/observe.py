"""Reads the facts about disruption from the cluster's objects. Pure; values that need a request are arguments."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gpuplane.api import karpenter, nodeclaim
from gpuplane.api.durations import duration
from gpuplane.api.karpenter import DeclaredPool, Provisioner
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.api.upgrade import unix_time
from gpuplane.autoscaler.disruption.eviction_budgets import MOST_SEARCHED, EvictionBudgets
from gpuplane.autoscaler.disruption.facts import DisruptableNode, PodWeight
from gpuplane.autoscaler.disruption.marks import MarkedClaim
from gpuplane.autoscaler.termination.claim_conditions import condition_of_claim, holds
from gpuplane.autoscaler.termination.observe import (
    held_by,
    hold_end,
    is_daemon,
    is_mirror,
    is_ready,
    tolerates_disruption,
)
from kubekit.api.core import Node, Pod

DELETION_COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
_COST: Final = re.compile(r"-?[0-9]{1,10}")
_COST_UNIT, _PRIORITY_UNIT = 2.0**27, 2.0**25
_MOST_COST: Final = 10.0
_TRUE: Final = "true"
MOVING_SECONDS: Final = 20.0
"""Longest time from the deletion of a claim until the successors of its pods are counted elsewhere."""


def weigh_pod(pod: Pod, budgets: EvictionBudgets, now: float) -> PodWeight:
    """Return what the eviction of a pod costs, and why it may not be evicted."""
    cost = 1.0 + _deletion_cost(pod) / _COST_UNIT + (pod.spec.priority or 0) / _PRIORITY_UNIT
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    return PodWeight(name, max(-_MOST_COST, min(_MOST_COST, cost)), why_held(pod, budgets, now))


def why_held(pod: Pod, budgets: EvictionBudgets, now: float) -> str:
    """Return why a pod may not be evicted now, as words; empty if it may."""
    meta = pod.metadata
    if meta.deletion_timestamp:
        return ""  # it leaves already, whatever its annotation says
    if hold_end(pod) > now:
        return f"pod {meta.namespace}/{meta.name} has {held_by(pod)}"
    if is_daemon(pod) or is_mirror(pod) or tolerates_disruption(pod.spec.tolerations):
        return ""
    of_namespace = budgets.get(meta.namespace)
    if of_namespace is None:
        return ""
    if of_namespace.are_too_many(meta.labels):
        return f"pod {meta.namespace}/{meta.name} may have more than {MOST_SEARCHED} PodDisruptionBudgets"
    covering = of_namespace.covering(meta.labels)
    if len(covering) > 1:
        names = " and ".join(one.name for one in covering)
        return f"pod {meta.namespace}/{meta.name} has more than one PodDisruptionBudget, {names}: it cannot be evicted"
    ready = any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)
    if covering and covering[0].allowed <= 0 and (ready or not covering[0].always):
        return f"PodDisruptionBudget {covering[0].name} admits no eviction of {meta.namespace}/{meta.name}"
    return ""


def _deletion_cost(pod: Pod) -> float:
    text = pod.metadata.annotations.get(DELETION_COST_ANNOTATION, "")
    # NB: a user of one namespace writes it; a number that no float holds must not end the decision about all nodes.
    cost = int(text) if _COST.fullmatch(text) else 0
    return float(cost) if -(2**31) <= cost < 2**31 else 0.0


def is_workload(pod: Pod) -> bool:
    """Return whether a pod has not ended and is of no DaemonSet, so that its node is not empty."""
    return not (pod.status.ended or is_daemon(pod) or is_mirror(pod))


def disruptable_node(
    claim: NodeClaim,
    node: Node | None,
    pods: Sequence[Pod],
    budgets: EvictionBudgets,
    now: float,
    *,
    nominated: bool = False,
    price: float | None = None,
) -> DisruptableNode:
    """Return the facts about a claim; `pods` are those of its node."""
    weights = [(pod, weigh_pod(pod, budgets, now)) for pod in pods if not pod.status.ended]
    moving = tuple(weight for pod, weight in weights if is_workload(pod) and not pod.metadata.deletion_timestamp)
    initialized = condition_of_claim(claim, nodeclaim.INITIALIZED)
    drift = condition_of_claim(claim, nodeclaim.DRIFTED)
    labels = claim.metadata.labels
    annotations = node.metadata.annotations if node is not None else {}
    return DisruptableNode(
        claim=claim.metadata.name,
        node=node.metadata.name if node is not None else "",
        pool=pool_of(claim),
        created=unix_time(claim.metadata.creation_timestamp) or 0.0,
        # Also without its Node: a claim that ends counts against budgets until it is gone.
        initialized=_since(claim, nodeclaim.INITIALIZED) if initialized is not None else None,
        away=node is None or not is_ready(node) or is_leaving(claim, node),
        stays=_why_stays(claim, annotations, nominated=nominated),
        stays_for_pods=next((weight.holds for _, weight in weights if weight.holds), ""),
        held=_held(annotations),
        bounded=bool(claim.spec.termination_grace_period),
        pods=moving,
        consolidatable=holds(claim, nodeclaim.CONSOLIDATABLE),
        emptied=unix_time(annotations.get(nodeclaim.EMPTINESS_ANNOTATION, "")),
        drift=drift.reason if drift is not None and drift.status == "True" else "",
        drifted=_since(claim, nodeclaim.DRIFTED) or 0.0,
        price=price,
        machine=labels.get(karpenter.TYPE_LABEL, ""),
        capacity_type=labels.get(karpenter.CAPACITY_TYPE_LABEL, ""),
    )


def is_leaving(claim: NodeClaim, node: Node | None) -> bool:
    """Return whether a claim, or its node, ends already, or is about to."""
    deleted = claim.metadata.deletion_timestamp or (node is not None and node.metadata.deletion_timestamp)
    return bool(deleted) or (node is not None and is_tainted(node))


def is_moving(claim: NodeClaim, now: float) -> bool:
    """Return whether pods have just left the claim's node, or are about to, and may not be seen elsewhere yet."""
    deleted = unix_time(claim.metadata.deletion_timestamp or "")
    return deleted is not None and not holds(claim, nodeclaim.DRAINED) and abs(now - deleted) < MOVING_SECONDS


def is_tainted(node: Node) -> bool:
    """Return whether a node has the taint of nodes that end."""
    return any(one.key == nodeclaim.DISRUPTED_TAINT for one in node.spec.taints)


def pool_of(claim: NodeClaim) -> str:
    """Return the name of a claim's pool."""
    return claim.metadata.labels.get(karpenter.POOL_LABEL, "")


def marked_claim(
    claim: NodeClaim,
    node: Node | None,
    pods: Collection[Pod],
    pool: DeclaredPool | None,
    *,
    nominated: bool,
    last_event: float | None,
    drift: str,
) -> MarkedClaim:
    """Return the facts about a claim by which its marks are decided."""
    annotations = node.metadata.annotations if node is not None else {}
    return MarkedClaim(
        created=unix_time(claim.metadata.creation_timestamp) or 0.0,
        initialized=_since(claim, nodeclaim.INITIALIZED) if node is not None else None,
        workloads=any(map(is_workload, pods)),
        nominated=nominated,
        stamped=unix_time(annotations.get(nodeclaim.EMPTINESS_ANNOTATION, "")),
        last_event=last_event,
        expire_after=_expire_after(claim, pool),
        drift=drift,
    )


def _expire_after(claim: NodeClaim, pool: DeclaredPool | None) -> float | None:
    # ttlSecondsUntilExpired of a Provisioner holds for its running nodes too; expireAfter is the claim's own.
    if pool is not None and pool.kind == Provisioner.RESOURCE.kind:
        return pool.disruption.expire_after
    return duration(claim.spec.expire_after) if claim.spec.expire_after else None


def last_pod_event(claim: NodeClaim) -> float | None:
    """Return when a pod came to the claim's node or left it, as it was written last."""
    return unix_time(claim.status.last_pod_event_time) if claim.status.last_pod_event_time else None


def _since(claim: NodeClaim, kind: str) -> float | None:
    found = condition_of_claim(claim, kind)
    if found is None or found.status != "True":
        return None
    return unix_time(found.last_transition_time) or 0.0


def _why_stays(claim: NodeClaim, annotations: Mapping[str, str], *, nominated: bool) -> str:
    if annotations.get(nodeclaim.DO_NOT_DISRUPT) == _TRUE:
        return f"the node has {nodeclaim.DO_NOT_DISRUPT}"
    if claim.metadata.annotations.get(nodeclaim.DO_NOT_DISRUPT) == _TRUE:
        return f"the claim has {nodeclaim.DO_NOT_DISRUPT}"
    return "waiting pods are expected on the node" if nominated else ""


def _held(annotations: Mapping[str, str]) -> str:
    held = annotations.get(nodeclaim.DO_NOT_CONSOLIDATE) == _TRUE
    return f"the node has {nodeclaim.DO_NOT_CONSOLIDATE}" if held else ""
