"""Gangs for which no preemption is planned for a while: the last plan took long and did not help.

On thousands of nodes such a plan takes a second, and any pod that leaves wakes the gang. A gang rests for REST_FACTOR
times as long as its plan took, so planning for it takes a twentieth of the scheduler's time at most. It is woken at the
end if it was tried meanwhile, so that it does not wait where it would fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from gpuplane.scheduler.gangs.members import GangKey
from kubekit.kube import Clock
from kubekit.kube.clock import Timer

REST_FACTOR: Final = 20.0


class _Rest(msgspec.Struct):
    until: float
    message: str
    timer: Timer | None = None


class GangRests:
    """
    Args:
        wake: called with a gang that was tried while it rested, when its rest has ended.
    """

    def __init__(self, clock: Clock, wake: Callable[[GangKey], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._rests: dict[GangKey, _Rest] = {}

    def begin(self, key: GangKey, took: float, message: str) -> None:
        """Let the gang rest.

        Args:
            took: seconds that the plan took.
            message: why it did not help.
        """
        self.end(key)
        self._rests[key] = _Rest(self._clock.now() + REST_FACTOR * took, message)

    def message(self, key: GangKey) -> str:
        """Return why the last plan did not help; empty for a gang that does not rest."""
        rest = self._rests.get(key)
        if rest is None:
            return ""
        left = rest.until - self._clock.now()
        if left <= 0:
            self.end(key)
            return ""
        if rest.timer is None:
            rest.timer = self._clock.call_later(left, lambda: self._over(key))
        return rest.message

    def _over(self, key: GangKey) -> None:
        self.end(key)
        self._wake(key)

    def end(self, key: GangKey) -> None:
        """Let the gang be planned for again."""
        rest = self._rests.pop(key, None)
        if rest is not None and rest.timer is not None:
            rest.timer.cancel()

    def close(self) -> None:
        """Stop the timers."""
        for key in list(self._rests):
            self.end(key)
