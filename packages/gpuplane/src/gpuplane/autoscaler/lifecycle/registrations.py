"""LabelledCounts whether the nodes of a pool join: the last four of them, since its class was changed.

Kept in memory: after a restart the condition of the pool stays until the next node. Source: Karpenter 1.14.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_NODES: Final = 4
_UNHEALTHY: Final = 2  # nodes that did not join


class Registrations:
    """The last registrations of each pool."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, deque[bool]]] = {}  # pool -> hash of its class, and whether nodes joined

    def note(self, pool: str, class_hash: str, joined: bool) -> None:
        """Count a node that has joined, or that was given up."""
        known = self._last.get(pool)
        if known is None or known[0] != class_hash:
            known = self._last[pool] = (class_hash, deque(maxlen=_NODES))
        known[1].append(joined)

    def healthy(self, pool: str) -> bool | None:
        """Return whether nodes of a pool join; None if no node has tried yet."""
        known = self._last.get(pool)
        return None if known is None else known[1].count(False) < _UNHEALTHY
