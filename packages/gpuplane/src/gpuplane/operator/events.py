"""Bounds the events of the operator: GPUNode has the record, events are hints."""

from __future__ import annotations

from typing import Final

from kubekit.api.meta import KubeObject
from kubekit.kube import Clock, EventRecorder, TokenBucket
from kubekit.kube.events import EventLevel

# A cluster that comes up whole does not drown in events.
_PER_SECOND: Final = 5.0
_AT_ONCE: Final = 100.0


class LimitedRecorder:
    """Records every Warning, and as many Normal events as a token bucket over all objects allows."""

    def __init__(self, recorder: EventRecorder, clock: Clock) -> None:
        self._recorder = recorder
        self._bucket = TokenBucket(_PER_SECOND, _AT_ONCE, clock.now)

    def event(self, about: KubeObject, level: EventLevel, reason: str, message: str) -> None:
        """Record an event about an object, or drop it."""
        if level == "Warning" or self._bucket.take():
            self._recorder.event(about, level, reason, message)
