"""Claims: what a pod will most likely take between its filter and its bind, so that the next pod looks elsewhere.

kube-scheduler chooses a node for the next pod while the one before is still on its way to `bind`. Which node that one
got is unknown until then, but nearly always it is the node with the best score. A claim is a reservation in the ledger
under a key of its own, that yields to everything else.

Invariants:

- A claim never refuses a pod: where nothing else fits, `aside` shows the nodes without claims.
- A claim ends with its pod's bind, with its next filter, when the pod is gone, or after `SECONDS`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import msgspec

from gpuplane.sharing import Assignment, Ledger
from kubekit.errors import Retryable
from kubekit.kube import Clock

SECONDS: Final = 10.0
_MOST: Final = 1000
_PREFIX: Final = "claim:"


class _Claim(msgspec.Struct, frozen=True):
    node: str
    assignment: Assignment
    until: float


class Claims:
    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._claims: dict[str, _Claim] = {}  # by the pod's uid, the oldest first
        self._of_node: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._claims)

    def put(self, uid: str, node: str, assignment: Assignment) -> None:
        """The pod will take this, most likely."""
        self.drop(uid)
        if len(self._claims) >= _MOST:
            self.drop(next(iter(self._claims)))
        try:
            self._ledger.reserve(_PREFIX + uid, node, assignment)
        except Retryable:
            return  # it was placed where another claim stands
        self._claims[uid] = _Claim(node, assignment, self._clock.now() + SECONDS)
        self._of_node.setdefault(node, set()).add(uid)

    def drop(self, uid: str) -> None:
        claim = self._claims.pop(uid, None)
        if claim is not None:
            self._ledger.rollback(_PREFIX + uid)
            uids = self._of_node[claim.node]
            uids.discard(uid)
            if not uids:
                del self._of_node[claim.node]

    def expire(self) -> None:
        """Drops those whose time is over."""
        now = self._clock.now()
        while self._claims:
            uid, claim = next(iter(self._claims.items()))
            if claim.until > now:
                return
            self.drop(uid)

    def drop_on(self, node: str) -> None:
        """Drop the claims that a certain reservation makes unlikely."""
        for uid in list(self._of_node.get(node, ())):
            self.drop(uid)

    def nodes(self) -> list[str]:
        """Nodes on which something is claimed."""
        return list(self._of_node)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """The ledger without claims, for as long as the context lasts; nothing may be reserved in it."""
        for uid in self._claims:
            self._ledger.rollback(_PREFIX + uid)
        try:
            yield
        finally:
            for uid, claim in list(self._claims.items()):
                try:
                    self._ledger.reserve(_PREFIX + uid, claim.node, claim.assignment)
                except Retryable:
                    self.drop(uid)  # a GPU was lost meanwhile
