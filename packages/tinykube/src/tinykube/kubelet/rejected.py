"""The node's refusal of a pod."""

from __future__ import annotations

from kubekit.errors import Terminal


class PodRejected(Terminal):
    """The node refuses the pod for good. `reason` becomes status.reason, the message status.message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
