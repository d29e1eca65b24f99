"""Pods that wait on a node for others to leave: their GPUs are not for pods of lower priority that come meanwhile.

Invariants:

- A pod is nominated to at most one node.
- A pod whose place is `reserved` is refused by no nomination: the place was reserved next to them.
- A pod of lower priority gets GPUs of the node only if the nominated pods fit there already and leave room for it.
  While they do not fit yet, it gets none of that node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final

from gpuplane.scheduler.policies import Policies
from gpuplane.scheduler.transforms import CachedPod
from gpuplane.sharing import NodeState, Request
from gpuplane.sharing.placement.fit import rate, taken

REASON: Final = "its free GPUs are for a pod of higher priority that waits for them"


class GPUNominations:
    """The nominated pods with GPUs, by node."""

    def __init__(self, policies: Policies) -> None:
        self.reserved: set[str] = set()  # uids of pods whose place is reserved
        self._policies = policies
        self._of_node: dict[str, dict[str, CachedPod]] = {}
        self._nodes: dict[str, str] = {}

    def __contains__(self, node: str) -> bool:
        return node in self._of_node

    def __bool__(self) -> bool:
        return bool(self._of_node)

    def by_node(self) -> dict[str, tuple[str, ...]]:
        """Return the uids of the nominated pods, by node."""
        return {node: tuple(pods) for node, pods in self._of_node.items()}

    def put(self, pod: CachedPod, node: str) -> None:
        """Nominate a pod to a node, instead of the node before."""
        uid = pod.metadata.uid
        self.remove(uid)
        if pod.request:
            self._nodes[uid] = node
            self._of_node.setdefault(node, {})[uid] = pod

    def remove(self, uid: str) -> None:
        """Forget the nomination of a pod."""
        node = self._nodes.pop(uid, None)
        if node is not None:
            pods = self._of_node[node]
            del pods[uid]
            if not pods:
                del self._of_node[node]

    @contextlib.contextmanager
    def aside(self, uids: Iterable[str]) -> Iterator[None]:
        """Forget the nominations of these pods for as long as the context lasts."""
        gone = [(node, self._of_node[node][uid]) for uid in uids if (node := self._nodes.get(uid)) is not None]
        for _, pod in gone:
            self.remove(pod.metadata.uid)
        try:
            yield
        finally:
            for node, pod in gone:
                self.put(pod, node)

    def refuses(self, pod: CachedPod, state: NodeState) -> str:
        """Return REASON if nominated pods need the GPUs that the pod would get; empty if they do not."""
        others = list(self._before(pod, state.name))
        if not others or pod.metadata.uid in self.reserved:
            return ""
        return "" if self.fits(pod, state) else REASON

    def fits(self, pod: CachedPod, state: NodeState) -> bool:
        """Return whether the pod fits next to the nominated pods that come before it."""
        left: NodeState | None = state
        for other in self._before(pod, state.name):
            left = self._less(left, other.request)
            if left is None:
                return False
        return self._less(left, pod.request) is not None

    def _before(self, pod: CachedPod, node: str) -> Iterator[CachedPod]:
        """Yield the other pods that are nominated to the node, and that are no less important."""
        for uid, other in self._of_node.get(node, {}).items():
            if uid != pod.metadata.uid and (other.spec.priority or 0) >= (pod.spec.priority or 0):
                yield other

    def _less(self, state: NodeState | None, request: Request) -> NodeState | None:
        """Return the node with a pod of this request on it; None where it does not fit."""
        if state is None or not request:
            return state
        if state.by_count and request.by_count:
            return state  # counted by the filters
        rated = rate(state, request, *self._policies.of(request))
        return None if rated is None else taken(state, request, rated[0])
