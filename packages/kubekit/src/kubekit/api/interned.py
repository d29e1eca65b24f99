"""Keeps equal values once: a cluster of 60,000 pods has few different labels, affinities and requests."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import msgspec

V = TypeVar("V")
MOST_VALUES: Final = 8192


class Interner(Generic[V]):
    """Equal values as one object. The oldest is forgotten once there are too many: that costs memory only."""

    def __init__(self) -> None:
        self._known: dict[bytes, V] = {}

    def same(self, value: V) -> V:
        """Return the value, or an equal one that was passed before."""
        key = msgspec.msgpack.encode(value)
        known = self._known.get(key)
        if known is not None:
            return known
        if len(self._known) >= MOST_VALUES:
            del self._known[next(iter(self._known))]
        self._known[key] = value
        return value
