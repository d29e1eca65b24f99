"""GPUs of a cluster that are held: by pods that say which, and by a guess for those that do not say.

A pod that kube-scheduler and the kubelet placed by number says how many GPUs it holds and not which. Such pods are
placed as tightly as they fit, after all that say. Most questions are about few nodes, so a node is guessed when it is
asked about.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import msgspec

from gpuplane.scheduler.transforms import CachedPod
from gpuplane.sharing import Assignment, Ledger, LedgerGPU, NodeState
from gpuplane.sharing.node import usable
from gpuplane.sharing.placement import Placement, Refusal, place
from gpuplane.sharing.placement.tightest import TightestPolicy


class Holdings:
    """The GPUs of the nodes, and what bound pods hold of them."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._silent: dict[str, dict[str, CachedPod]] = {}  # node -> UID -> a pod that does not say which it holds
        self._outdated: set[str] = set()  # nodes to guess again

    def set_node(self, name: str, gpus: Sequence[LedgerGPU], *, by_count: bool) -> None:
        self._ledger.set_node(name, gpus, by_count=by_count)
        self._change(name)

    def drop_node(self, name: str) -> None:
        self._ledger.drop_node(name)

    def add(self, pod: CachedPod) -> None:
        """Count a bound pod."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        if pod.assignment is not None:
            self._ledger.hold(uid, node, pod.assignment)
        else:
            self._silent.setdefault(node, {})[uid] = pod
        self._change(node)

    @contextlib.contextmanager
    def without(self, pod: CachedPod) -> Iterator[None]:
        """The holdings while one of the pods is not there."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        self._ledger.release(uid)
        silent = self._silent.get(node, {})
        order = dict(silent)
        silent.pop(uid, None)
        self._change(node)
        try:
            yield
        finally:
            if order:
                self._silent[node] = order
            if pod.assignment is not None:
                self._ledger.hold(uid, node, pod.assignment)
            self._change(node)

    def node(self, name: str) -> NodeState | None:
        """The node with what is free of its GPUs; None for one without GPUs that gpuplane knows."""
        if name in self._outdated:
            self._outdated.discard(name)
            self._guess(name)
        return self._ledger.node(name)

    def gpus(self, name: str) -> tuple[LedgerGPU, ...]:
        state = self._ledger.node(name)
        return state.gpus if state is not None else ()

    def bare_nodes(self) -> Iterator[NodeState]:
        """Yield the nodes for their GPUs alone: nodes that were not guessed yet count as free."""
        return self._ledger.nodes()

    def is_guessed(self, name: str) -> bool:
        """Return whether pods hold GPUs of the node that no pod names; with one GPU there is no doubt."""
        return bool(self._silent.get(name)) and len(self.gpus(name)) != 1

    def _change(self, node: str) -> None:
        if node in self._silent:
            self._outdated.add(node)

    def _guess(self, node: str) -> None:
        """Place the node's silent pods: the number of their GPUs is known, the GPUs are not."""
        silent = list(self._silent[node].values())
        for pod in silent:
            self._ledger.release(pod.metadata.uid)
        for pod in silent:
            state = self._ledger.node(node)
            placed = place(state, pod.request, TightestPolicy()) if state is not None else None
            if state is not None and isinstance(placed, Refusal):
                # The pod that held a lost GPU still holds it.
                placed = place(mended(state), pod.request, TightestPolicy())
            found = placed.assignment if isinstance(placed, Placement) else Assignment({})
            self._ledger.hold(pod.metadata.uid, node, found)


def mended(state: NodeState) -> NodeState:
    """Return the node as it would be without faults."""
    if not any(gpu.fault for gpu in state.gpus):
        return state
    gpus = tuple(msgspec.structs.replace(gpu, fault="") for gpu in state.gpus)
    return msgspec.structs.replace(state, gpus=gpus, usable=usable(gpus))
