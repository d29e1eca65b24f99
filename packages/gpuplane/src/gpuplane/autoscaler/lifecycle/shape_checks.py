"""Events about nodes that are not what their claims were bought for, and the condition ConsistentStateFound.

The offer of a node is compared once, when it is initialised, and its capacity every 10 min.
"""

from __future__ import annotations

import logging
from typing import Final

from gpuplane import names
from gpuplane.api.nodeclaim import CONSISTENT, NodeClaim
from gpuplane.autoscaler.lifecycle.consistency import shape_issues
from gpuplane.autoscaler.nodeclaims import difference
from kubekit.api.core import Node
from kubekit.kube import Clock, EventRecorder
from kubekit.scheduling.podinfo import amounts

log = logging.getLogger("gpuplane.autoscaler")
CHECK_SECONDS: Final = 600.0

ConditionState = tuple[str, str, str, str]
"""(condition, status, reason, message)."""


class ShapeChecks:
    """Compares nodes with their claims."""

    def __init__(self, recorder: EventRecorder, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock
        self._checked: dict[str, float] = {}  # claim -> when its node was compared with it

    def wait(self, claim: str) -> float:
        """Return the seconds until a claim's node is compared again; 0 if that is due."""
        now = self._clock.now()
        return max(0.0, self._checked.get(claim, now - CHECK_SECONDS) + CHECK_SECONDS - now)

    def check(self, claim: NodeClaim, node: Node) -> ConditionState:
        """Return the condition of a claim by its node now, and report what the node lacks."""
        self._checked[claim.metadata.name] = self._clock.now()
        issues = shape_issues(claim, node)
        for issue in issues:
            self._recorder.event(claim, "Warning", "FailedConsistencyCheck", issue)
            log.warning("node is not as expected claim=%s: %s", claim.metadata.name, issue)
        if issues:
            return CONSISTENT, "False", "ConsistencyCheckFailed", "; ".join(issues)
        return CONSISTENT, "True", CONSISTENT, ""

    def compare(self, claim: NodeClaim, node: Node) -> None:
        """Report where the node offers something else than was predicted; later predictions are corrected by it."""
        if names.PREDICTED_ANNOTATION not in claim.metadata.annotations:
            return
        found = difference(amounts(claim.status.allocatable), amounts(node.status.allocatable))
        if found:
            text = ", ".join(f"{name} {real} instead of {predicted}" for name, (predicted, real) in found.items())
            message = f"the node offers {text}; nodes like it count so from now on"
            self._recorder.event(claim, "Warning", "AllocatableDiffers", message)
            log.warning("allocatable differs claim=%s node=%s: %s", claim.metadata.name, node.metadata.name, text)

    def forget(self, claim: str) -> None:
        """Forget a claim that ends."""
        self._checked.pop(claim, None)
