"""Carries out plans of disruption: taints, conditions, deletions of claims, and taking a plan back."""

from __future__ import annotations

import logging
from typing import Any, Final

from gpuplane.api import nodeclaim
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.autoscaler.disruption.facts import DisruptableNode, DisruptionPlan
from gpuplane.autoscaler.disruption.observe import is_tainted
from gpuplane.autoscaler.life_figures import LifeFigures
from gpuplane.autoscaler.repeated_events import RepeatedEvents
from gpuplane.autoscaler.termination.claim_conditions import MANAGER, holds, set_conditions
from gpuplane.autoscaler.termination.observe import EXCLUDE_LABEL
from gpuplane.autoscaler.termination.writer import EXCLUDE_VALUE, marking_patch
from kubekit.api.core import Node
from kubekit.api.meta import to_dict
from kubekit.kube import Client, Clock, Conflict, EventRecorder, NotFound

log = logging.getLogger("gpuplane.autoscaler")
WAITS_SECONDS: Final = 120.0  # until a replacement that takes no pods yet is reported again


class DisruptionWriter:
    """The writer of plans. `disrupted` counts nodes by (reason, pool, capacity type, policy), for metrics."""

    def __init__(
        self, client: Client, recorder: EventRecorder, clock: Clock, figures: LifeFigures | None = None
    ) -> None:
        self.disrupted: dict[tuple[str, str, str, str], int] = {}
        self._figures = figures or LifeFigures()
        self._client = client
        self._recorder = recorder
        self._waits = RepeatedEvents(recorder, clock, WAITS_SECONDS)
        self._clock = clock

    async def taint(self, node: Node, claim: NodeClaim, plan: DisruptionPlan) -> None:
        """Keep pods off a node that will go, and record why on its claim. Raises Conflict for a newer node or claim."""
        await set_conditions(
            self._client, claim, {nodeclaim.DISRUPTION_REASON: (True, plan.reason)}, self._clock.wall()
        )
        if not is_tainted(node):
            await self._client.patch(Node, node.metadata.name, marking_patch(node), manager=MANAGER)

    async def untaint(self, node: Node, claim: NodeClaim | None) -> None:
        """Take back `taint`. Raises Conflict for a newer node or claim."""
        if claim is not None:
            await set_conditions(self._client, claim, {nodeclaim.DISRUPTION_REASON: None}, self._clock.wall())
        try:
            await self._client.patch(Node, node.metadata.name, unmarking_patch(node), manager=MANAGER)
        except NotFound:
            return
        log.info("disruption taken back node=%s", node.metadata.name)

    async def delete(self, claim: NodeClaim, node: DisruptableNode, plan: DisruptionPlan) -> None:
        """Delete a claim of a plan: its node is drained and ends."""
        try:
            await self._client.delete(NodeClaim, claim.metadata.name, uid=claim.metadata.uid)
        except (NotFound, Conflict) as error:
            log.debug("already gone nodeclaim=%s: %s", node.claim, error)
            return
        key = (plan.reason.lower(), node.pool, node.capacity_type, plan.policy)
        self.disrupted[key] = self.disrupted.get(key, 0) + 1
        reason, pool, kind, policy = key
        labels = {"reason": reason, "nodepool": pool, "capacity_type": kind, "policy": policy}
        self._figures.pods_disrupted.add(len(node.pods), **labels)
        why = f"{plan.reason}: {plan.detail or plan.policy}"
        self._recorder.event(claim, "Normal", "DisruptionTerminating", f"the node {node.node} goes: {why}")
        log.info("disrupted nodeclaim=%s node=%s reason=%s by=%s", node.claim, node.node, plan.reason, plan.policy)

    def wait(self, replacement: NodeClaim, plan: DisruptionPlan) -> None:
        """Report to a replacement what it is launched for, and that the disruption waits until it takes pods."""
        why = f"it replaces {', '.join(node.node for node in plan.nodes)}: {plan.reason}"
        self._waits.report(replacement, "Normal", "DisruptionLaunching", why)
        what = "nodes go once this one takes pods"
        self._waits.report(replacement, "Normal", "DisruptionWaitingReadiness", what)

    async def drop(self, claim: NodeClaim | None) -> None:
        """Delete a claim that replaces nothing any more, unless its node takes pods already."""
        if claim is None or holds(claim, nodeclaim.INITIALIZED):
            return
        try:
            await self._client.delete(NodeClaim, claim.metadata.name, uid=claim.metadata.uid)
        except (NotFound, Conflict) as error:
            log.debug("already gone nodeclaim=%s: %s", claim.metadata.name, error)


def unmarking_patch(node: Node) -> dict[str, Any]:
    """Return the merge patch that takes taint and label of nodes that end off a node, conditional on its version."""
    taints = [to_dict(one) for one in node.spec.taints if one.key != nodeclaim.DISRUPTED_TAINT]
    labels: dict[str, str | None] = {}
    if node.metadata.labels.get(EXCLUDE_LABEL) == EXCLUDE_VALUE:
        labels[EXCLUDE_LABEL] = None
    return {
        "metadata": {"resourceVersion": node.metadata.resource_version, "labels": labels},
        "spec": {"taints": taints},
    }
