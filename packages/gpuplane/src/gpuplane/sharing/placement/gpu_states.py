"""Rates a share once for each state of a GPU, so that thousands of nodes are rated without a look at each GPU.

Nodes that hold pods by chance are in thousands of states, but their GPUs are in few: what is free of core and memory.
For most policies, the rating of a share on a node is the best of its ratings on each GPU alone (`Policy.share`).

Invariant: the values equal those of `fit.rate` for each node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeGuard

import msgspec

from gpuplane.sharing.node import LedgerGPU, NodeState
from gpuplane.sharing.placement.fit import fits_gpu
from gpuplane.sharing.placement.lacking import cannot_host
from gpuplane.sharing.placement.policy import GPUPolicy, Policy
from gpuplane.sharing.placement.room import room
from gpuplane.sharing.request import Request

NEVER: Final = float("-inf")  # the value of a node that a request does not fit
_NOWHERE: Final = 1 << 62  # the rank of a share on a GPU that it does not fit
_MOST_STATES: Final = 100_000  # of GPUs, remembered; a cluster with shares in percent has hundreds

_Key = tuple[int, int, int]


class GPUsOfNode(msgspec.Struct, frozen=True, gc=False):
    """The GPUs of a node in some state: the numbers of their states, each once, and what is free of all together."""

    states: tuple[int, ...]
    room: int


def by_gpu(policy: Policy, request: Request) -> TypeGuard[GPUPolicy]:
    """Return whether nodes can be rated by the states of their GPUs: for a pod that is one share, by a GPUPolicy."""
    share = len(request.asks) == 1 and not request.asks[0].gpus
    return share and isinstance(policy, GPUPolicy) and not (request.uuids or request.not_uuids)


class GPUStates:
    """Numbers of the states of GPUs."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, int, bool, int], int] = {}
        self._kinds_of: dict[int, tuple[tuple[LedgerGPU, ...], tuple[int, ...]]] = {}  # nodes keep the tuple of GPUs
        self._numbers: dict[_Key, int] = {}
        self._states: list[NodeState] = []  # of a node with this GPU alone
        self._rooms: list[int] = []

    def full(self) -> bool:
        """Return whether there are so many that numbering has to begin again."""
        return max(len(self._states), len(self._kinds_of)) > _MOST_STATES

    def of(self, node: NodeState) -> GPUsOfNode:
        """Return the GPUs of a node."""
        known = self._numbers
        found: list[int] = []
        for at, key in enumerate(zip(self._kinds_in(node), node.core, node.memory, strict=True)):
            number = known.get(key)
            if number is None:
                number = known[key] = len(self._states)
                alone = NodeState("", (node.gpus[at],), (node.core[at],), (node.memory[at],), node.scale)
                self._states.append(alone)
                self._rooms += room(alone)
            found.append(number)
        return GPUsOfNode(tuple(dict.fromkeys(found)), sum(map(self._rooms.__getitem__, found)))

    def _kinds_in(self, node: NodeState) -> tuple[int, ...]:
        """Return a number for each GPU of a node, by what never changes of it and by its health."""
        known = self._kinds_of.get(id(node.gpus))
        if known is None or known[0] is not node.gpus:
            keys = [(gpu.model, gpu.memory_mib, gpu.usable, node.scale) for gpu in node.gpus]
            kinds = tuple(self._kinds.setdefault(key, len(self._kinds)) for key in keys)
            known = self._kinds_of[id(node.gpus)] = node.gpus, kinds
        return known[1]

    def values(
        self, nodes: Iterable[tuple[NodeState, GPUsOfNode]], request: Request, policy: GPUPolicy
    ) -> Iterator[float]:
        """Yield the value of each node for a request that `by_gpu` admits."""
        ask = request.asks[0]
        shares = [
            policy.share(state, (left,), 0, ask) if fits_gpu(state, request) else None
            for state, left in zip(self._states, self._rooms, strict=True)
        ]
        rank_of = [_NOWHERE if share is None else share.rank for share in shares].__getitem__
        for state, gpus in nodes:
            # NB: of GPUs with the same rank the first counts, as in `quick`.
            share = shares[min(gpus.states, key=rank_of)] if gpus.states else None
            if share is None or cannot_host(state, request):
                yield NEVER
            else:
                yield policy.value_of_share(state, gpus.room, share, request)
