"""Means of an amount over equal parts of a time, for curves: bounded memory, whatever the number of changes."""

from __future__ import annotations

from typing import Final

PARTS: Final = 240


class MeanOverTime:
    """Adds up an amount that is constant between its changes, in each of `parts` equal parts of a time in seconds.

    Invariant: the mean of all means is the mean over the whole time, if each second was added once.
    """

    def __init__(self, first: int, last: int, parts: int = PARTS) -> None:
        """
        Args:
            parts: fewer where the time has fewer seconds.
        """
        self._first = first
        self._count = max(1, min(parts, last - first))
        self._length = (last - first) / self._count
        self._sums = [0.0] * self._count

    def add(self, begin: int, end: int, amount: float) -> None:
        """Count an amount from `begin` to `end`, which lie between the first and the last second."""
        if end <= begin or not amount:
            return
        at = (begin - self._first) / self._length
        until = (end - self._first) / self._length
        for part in range(int(at), self._count):
            if part >= until:
                return
            self._sums[part] += amount * (min(until, part + 1) - max(at, part))

    def means(self) -> list[tuple[float, float]]:
        """Return (seconds from the first to the middle of the part, mean); empty for a time without length."""
        if not self._length:
            return []
        return [((part + 0.5) * self._length, amount) for part, amount in enumerate(self._sums)]
