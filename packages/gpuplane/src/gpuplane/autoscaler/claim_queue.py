"""The order in which claims are offered a pod: those with the fewest pods first, without a look at those that refused.

A claim only gets fuller, so a claim that refused a pod for want of room refuses all of its kind, and a domain that is
full for a spread constraint stays so until the least of the other domains rises. So claims are put aside under the
cause, and come back when the cause is another one.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Protocol


class SizedClaim(Protocol):
    """A claim as a queue sees it."""

    @property
    def asks(self) -> Sequence[object]: ...

    @property
    def group(self) -> object: ...

    @property
    def replaced(self) -> bool: ...


class ClaimQueue:
    """The claims of one group, or of none, for pods of one company or kind. `group` None takes all claims."""

    def __init__(self, claims: Sequence[SizedClaim], group: object) -> None:
        self._claims = claims
        self._group = group
        self._known = 0
        self._heap: list[tuple[int, int]] = []  # pods, place among the claims
        self._aside: dict[str, tuple[object, list[int]]] = {}  # kind of cause -> the cause, places

    def refresh(self, causes: dict[str, object]) -> None:
        """Take in new claims, and those that were put aside for another cause than these."""
        for at in range(self._known, len(self._claims)):
            if self._group is None or self._claims[at].group in (None, self._group):
                heapq.heappush(self._heap, (len(self._claims[at].asks), at))
        self._known = len(self._claims)
        for kind, (cause, places) in list(self._aside.items()):
            if causes.get(kind) != cause:
                del self._aside[kind]
                for at in places:
                    heapq.heappush(self._heap, (len(self._claims[at].asks), at))

    def first(self) -> tuple[int, int] | None:
        """Return the pods and the place of the claim with the fewest; None for no claim."""
        while self._heap:
            size, at = self._heap[0]
            claim = self._claims[at]
            if claim.replaced or (self._group is not None and claim.group not in (None, self._group)):
                heapq.heappop(self._heap)
            elif len(claim.asks) != size:
                heapq.heapreplace(self._heap, (len(claim.asks), at))
            else:
                return size, at
        return None

    def pop(self) -> int:
        """Remove the claim of `first`, and return its place."""
        return heapq.heappop(self._heap)[1]

    def push(self, at: int) -> None:
        """Offer a claim again."""
        heapq.heappush(self._heap, (len(self._claims[at].asks), at))

    def put_aside(self, at: int, kind: str, cause: object) -> None:
        """Offer a claim again once the cause of this kind is another one."""
        known = self._aside.get(kind)
        if known is None:
            known = self._aside[kind] = (cause, [])
        known[1].append(at)
