"""The best node for a request, among thousands, in a fraction of a millisecond.

Between two pods that ask the same, few nodes change; so the ranking of a request is cached, and only the nodes that
the ledger's journal names since then are looked at again. For a request that is new, nodes in the same state are looked
at once (`alike`).

Invariant: the answer equals that of evaluating every node again; of equally good nodes the first in order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec

from gpuplane.sharing.ledger import Ledger
from gpuplane.sharing.node import NodeState
from gpuplane.sharing.placement.alike import AlikeNodes
from gpuplane.sharing.placement.fit import place, rate
from gpuplane.sharing.placement.gpu_states import NEVER
from gpuplane.sharing.placement.policy import Placement, Policy
from gpuplane.sharing.request import Request, kind_of

_REQUESTS: Final = 512


class _Known(msgspec.Struct):
    revision: int
    values: list[float]  # in the order of the nodes; NEVER where the pod does not fit


class Ranking:
    """Ranks nodes by one policy."""

    def __init__(self, ledger: Ledger, nodes: Iterable[str] | AlikeNodes, policy: Policy) -> None:
        """
        Args:
            nodes: their names, all of which the ledger knows; or the groups of another ranking of the same nodes.
        """
        self._ledger = ledger
        self._alike = nodes if isinstance(nodes, AlikeNodes) else AlikeNodes(ledger, nodes)
        self._names = self._alike.names
        self._position = self._alike.position
        self._policy = policy
        self._known: OrderedDict[Request, _Known] = OrderedDict()

    def best(self, request: Request) -> Placement | None:
        """Return the best node for the pod; None where it fits nowhere."""
        self._alike.numbers()  # so that a request that is new finds little to do
        values = self._values(kind_of(request))
        most = max(values, default=NEVER)
        if most == NEVER:
            return None
        state = self._ledger.node(self._names[values.index(most)])
        assert state is not None
        placed = place(state, request, self._policy)
        assert isinstance(placed, Placement)
        return placed

    def _values(self, request: Request) -> list[float]:
        known = self._known.get(request)
        ledger = self._ledger
        changed = None if known is None else ledger.changed_since(known.revision)
        if known is None or changed is None:
            known = self._known[request] = _Known(ledger.revision, self._all(request))
            if len(self._known) > _REQUESTS:
                self._known.popitem(last=False)
            return known.values
        self._known.move_to_end(request)
        known.revision = ledger.revision
        for name in set(changed):
            at = self._position.get(name)
            if at is not None:
                known.values[at] = self._value(name, request)
        return known.values

    def _all(self, request: Request) -> list[float]:
        if request.uuids or request.not_uuids:
            return [self._value(name, request) for name in self._names]
        numbers = self._alike.numbers()
        present = set(numbers)
        values = self._alike.share_values(present, request, self._policy)
        if values is None:
            values = {number: self._rated(self._alike.state(number), request) for number in present}
        return [values[number] for number in numbers]

    def _value(self, name: str, request: Request) -> float:
        return self._rated(self._ledger.node(name), request)

    def _rated(self, state: NodeState | None, request: Request) -> float:
        rated = None if state is None else rate(state, request, self._policy)
        return NEVER if rated is None else rated[1]
