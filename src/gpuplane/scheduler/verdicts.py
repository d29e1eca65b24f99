"""What placement says of (request, node), remembered until the node changes.

A cluster sees few different requests, and between two of the same few nodes change. So a filter over 5,000 nodes asks
`gpuplane.sharing.placement` about some, and looks the others up. There is no opinion in here.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Final

import msgspec

from gpuplane.sharing import Ledger, Request, empty
from gpuplane.sharing.placement import Placement, Policy, Refusal, place
from gpuplane.sharing.placement.fit import find

_REQUESTS: Final = 64
UNKNOWN: Final = "has no GPUs that gpuplane knows of"


class _Known(msgspec.Struct):
    revision: int
    lacks: dict[str, str] = {}  # by node: why not, "" where it fits
    scores: dict[str, int] = {}
    hopeless: dict[str, bool] = {}


class Verdicts:
    """`of(request, ...)` answers for one request; ask anew for each pod, since the ledger changes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: OrderedDict[tuple[Request, str, str], _Known] = OrderedDict()

    def of(self, request: Request, policy: Policy, gpu_policy: Policy) -> Answers:
        key = (request, policy.name, gpu_policy.name)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Known(self._ledger.revision)
            if len(self._known) > _REQUESTS:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        answers = Answers(self._ledger, known, request, policy, gpu_policy)
        answers.refresh()
        return answers


class Answers:
    """Placement's answers about one request, node by node."""

    def __init__(self, ledger: Ledger, known: _Known, request: Request, policy: Policy, gpu_policy: Policy) -> None:
        self._ledger = ledger
        self._known = known
        self._request = request
        self._policy = policy
        self._gpu_policy = gpu_policy

    def refresh(self) -> None:
        """Forgets what is said of nodes that have changed."""
        known = self._known
        changed = self._ledger.changed_since(known.revision)
        known.revision = self._ledger.revision
        for memory in (known.lacks, known.scores, known.hopeless):
            if changed is None:
                memory.clear()
            else:
                for node in changed:
                    memory.pop(node, None)

    def lack(self, node: str) -> str:
        """Why the pod does not fit the node as it is; empty when it does."""
        known = self._known.lacks.get(node)
        if known is None:
            state = self._ledger.node(node)
            found = UNKNOWN if state is None else find(state, self._request, self._gpu_policy)
            known = found if isinstance(found, str) else sys.intern(found.reason) if isinstance(found, Refusal) else ""
            self._known.lacks[node] = known
        return known

    def score(self, node: str) -> int:
        """How good the node is for the pod, 0-100; -1 where it does not fit."""
        known = self._known.scores.get(node)
        if known is None:
            placed = self.place(node)
            known = placed.score if isinstance(placed, Placement) else -1
            self._known.scores[node] = known
        return known

    def hopeless(self, node: str) -> bool:
        """Whether the pod would not fit even if the node's other pods went."""
        known = self._known.hopeless.get(node)
        if known is None:
            state = self._ledger.node(node)
            free = None if state is None else empty(node, state.gpus, state.scale)
            known = free is None or isinstance(find(free, self._request, self._gpu_policy), Refusal)
            self._known.hopeless[node] = known
        return known

    def place(self, node: str) -> Placement | Refusal:
        """What the pod would hold on the node, decided now."""
        state = self._ledger.node(node)
        return Refusal(UNKNOWN) if state is None else place(state, self._request, self._policy, self._gpu_policy)
