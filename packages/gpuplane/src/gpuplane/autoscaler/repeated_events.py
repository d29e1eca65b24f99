"""Events about a state that lasts: written when it begins or changes, and again after a while, not in every pass."""

from __future__ import annotations

from typing import Final

from kubekit.api.meta import KubeObject
from kubekit.kube import Clock, EventRecorder
from kubekit.kube.events import EventLevel

_MANY: Final = 1000  # remembered states from which the old ones are dropped


class RepeatedEvents:
    """The writer of such events. An equal one about the same object is written each `seconds` at most."""

    def __init__(self, recorder: EventRecorder, clock: Clock, seconds: float) -> None:
        self._recorder = recorder
        self._clock = clock
        self._seconds = seconds
        self._written: dict[tuple[str, str], tuple[str, float]] = {}  # (reason, uid) -> (message, when)
        self._many = _MANY

    def report(self, about: KubeObject, level: EventLevel, reason: str, message: str) -> None:
        """Write an event, unless it was written lately."""
        now, key = self._clock.now(), (reason, about.metadata.uid)
        before, at = self._written.get(key, ("", 0.0))
        if before == message and now - at < self._seconds:
            return
        self._written[key] = (message, now)
        self._recorder.event(about, level, reason, message)
        if len(self._written) > self._many:
            self._written = {key: one for key, one in self._written.items() if now - one[1] < self._seconds}
            self._many = max(_MANY, 2 * len(self._written))
