"""Measures for how long the stages of each node have failed under the driver's pod that it has now.

Invariant: a new pod begins at 0 again. Its driver may be another one, and was not tried yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple


class _Trouble(NamedTuple):
    pod: str  # uid
    since: float


class TroubleTimes:
    """The beginnings of troubles. `now` returns monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: dict[str, _Trouble] = {}

    def seconds(self, node: str, pod: str, trouble: str) -> float:
        """Return for how many seconds `node` has had any trouble under the driver's pod with the uid `pod`.

        An empty `trouble` ends it.
        """
        if not trouble:
            self._since.pop(node, None)
            return 0.0
        now = self._now()
        if node not in self._since or self._since[node].pod != pod:
            self._since[node] = _Trouble(pod, now)
        return now - self._since[node].since

    def keep(self, nodes: Collection[str]) -> None:
        """Forget all other nodes."""
        self._since = {name: trouble for name, trouble in self._since.items() if name in nodes}
