"""Groups the nodes that are in the same state, so that a request is rated once for each state and not for each node.

Most nodes of a large cluster are full, empty or as far filled as many others. A policy's rating of a node depends on
its GPUs, on what is free of them, and on its free CPU and memory; not on names and UUIDs. So states are compared
without those, and a request that selects GPUs by UUID must not use the groups.

Invariant: two nodes have the same number if, and only if, their states differ in names and UUIDs at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from gpuplane.sharing.ledger import Ledger
from gpuplane.sharing.node import LedgerGPU, NodeState
from gpuplane.sharing.placement.gpu_states import NEVER, GPUsOfNode, GPUStates, by_gpu
from gpuplane.sharing.placement.policy import Policy
from gpuplane.sharing.request import Request

_ABSENT: Final = -1
_STATES_FOR_A_NODE: Final = 4  # remembered; then numbering begins again
_LEAST_STATES: Final = 1_000

_Key = tuple[int, tuple[int, ...], tuple[int, ...], int, int | None, int | None, bool]


class AlikeNodes:
    """The nodes `names`, which the ledger knows, by number of their state."""

    def __init__(self, ledger: Ledger, names: Iterable[str], before: AlikeNodes | None = None) -> None:
        """
        Args:
            before: the same for other nodes of the ledger, whose GPUs are known.
        """
        self._ledger = ledger
        self.names = list(names)
        self.position = {name: at for at, name in enumerate(self.names)}
        self._kinds: dict[bytes, int] = before._kinds if before is not None else {}
        # Nodes have the same tuple of GPUs for long.
        self._kind_of: dict[int, tuple[tuple[LedgerGPU, ...], int]] = before._kind_of if before is not None else {}
        self._clear()

    def _clear(self) -> None:
        self._numbers: dict[_Key, int] = {}
        self._states: list[NodeState] = []
        self._gpu_states = GPUStates()
        self._gpus: list[GPUsOfNode] = []  # by number
        self._revision = self._ledger.revision
        self._number_of = [self._number(self._ledger.node(name)) for name in self.names]

    def numbers(self) -> list[int]:
        """Return the number of each node's state, in the order of the nodes; -1 for a node that is gone."""
        changed = self._ledger.changed_since(self._revision)
        many = len(self._states) > max(_LEAST_STATES, _STATES_FOR_A_NODE * len(self.names))
        if changed is None or many or self._gpu_states.full():
            self._clear()
            return self._number_of
        self._revision = self._ledger.revision
        for name in set(changed):
            at = self.position.get(name)
            if at is not None:
                self._number_of[at] = self._number(self._ledger.node(name))
        return self._number_of

    def state(self, number: int) -> NodeState | None:
        """Return a node's state that has the number."""
        return None if number == _ABSENT else self._states[number]

    def share_values(self, numbers: Iterable[int], request: Request, policy: Policy) -> dict[int, float] | None:
        """Return the value of each number's state for a request; None where each node has to be looked at."""
        if not by_gpu(policy, request):
            return None
        present = [number for number in numbers if number != _ABSENT]
        nodes = ((self._states[number], self._gpus[number]) for number in present)
        values = self._gpu_states.values(nodes, request, policy)
        return {_ABSENT: NEVER, **dict(zip(present, values, strict=True))}

    def _number(self, state: NodeState | None) -> int:
        if state is None:
            return _ABSENT
        key = (
            self._kind(state.gpus),
            state.core,
            state.memory,
            state.scale,
            state.cpu_milli,
            state.host_memory_mib,
            state.by_count,
        )
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._states)
            self._states.append(state)
            self._gpus.append(self._gpu_states.of(state))
        return number

    def _kind(self, gpus: tuple[LedgerGPU, ...]) -> int:
        known = self._kind_of.get(id(gpus))
        if known is None or known[0] is not gpus:
            if len(self._kind_of) > _STATES_FOR_A_NODE * len(self.names):
                self._kind_of.clear()
            text = msgspec.msgpack.encode([msgspec.structs.replace(gpu, uuid="", pci="") for gpu in gpus])
            known = self._kind_of[id(gpus)] = gpus, self._kinds.setdefault(text, len(self._kinds))
        return known[1]
