"""Turns of namespaces in a queue, so that the pods of one namespace do not hold up the pods of the others.

Start-time fair queueing: a pod that becomes ready gets a rank above its namespace's last rank and above the rank that
was served last. So of a namespace with thousands of ready pods only one comes before the next pod of another namespace.

Source: Goyal, Vin and Cheng, "Start-time Fair Queueing", 1996.
"""

from __future__ import annotations

from typing import Final

_MOST_NAMESPACES: Final = 1024


class NamespaceTurns:
    """Ranks for each lane and priority of its own: in a lane, pods of higher priority are always first."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int, str], int] = {}
        self._served: dict[tuple[str, int], int] = {}

    def rank(self, lane: str, priority: int, namespace: str) -> int:
        """Return the rank of a pod that is ready now; the lowest rank is served first."""
        served = self._served.get((lane, priority), 0)
        rank = max(self._last.get((lane, priority, namespace), 0), served) + 1
        self._last[lane, priority, namespace] = rank
        if len(self._last) > _MOST_NAMESPACES:
            # A rank that was served already is the same as none.
            self._last = {key: last for key, last in self._last.items() if last > self._served.get(key[:2], 0)}
        return rank

    def serve(self, lane: str, priority: int, rank: int) -> None:
        """Record that a pod of this rank has its turn."""
        self._served[lane, priority] = max(rank, self._served.get((lane, priority), 0))
