"""The CPU and memory that a node has allocated for its pods, and the resizes that wait for more of it.

A pod has what it requested when it was admitted. When its spec requests more, the node allocates that if it has as much
left, else the resize is deferred: it is tried again when another pod ends, shrinks or changes.

Source: the kubelet's allocation manager of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from kubekit.api.quantity import Quantity
from kubekit.scheduling.podinfo import amounts
from tinykube.kubelet.rejected import PodRejected
from tinykube.kubelet.resources import RESIZABLE

DEFERRED: Final = "Deferred"
INFEASIBLE: Final = "Infeasible"


class ResizeRank(msgspec.Struct, frozen=True, order=True):
    """The order of waiting resizes, the first one first: those that request no more, then by priority of their pods,
    then Guaranteed pods, then the time since when they wait."""

    increases: bool
    minus_priority: int
    burstable: bool
    since: float


class WaitingResize(Protocol):
    """A pod whose spec requests other resources than the node has allocated for it."""

    @property
    def uid(self) -> str: ...

    @property
    def rank(self) -> ResizeRank: ...

    @property
    def wanted(self) -> Mapping[str, int]:
        """The requests of the pod, in thousandths of a CPU and in bytes."""

    def accept(self) -> None:
        """The node allocates what is wanted."""

    def defer(self, message: str) -> None:
        """The node does not have it now."""


def shortage(wanted: Mapping[str, int], others: Mapping[str, int], capacity: Mapping[str, int]) -> str:
    """Return what a node has too little of for a pod next to others, "" if it has enough. Pure."""
    for name in RESIZABLE:
        amount, used, most = wanted.get(name, 0), others.get(name, 0), capacity.get(name, 0)
        if amount and used + amount > most:
            return f"Node didn't have enough resource: {name}, requested: {amount}, used: {used}, capacity: {most}"
    return ""


class Allocations:
    """The allocated CPU and memory of one node's pods, in thousandths of a CPU and in bytes."""

    def __init__(self) -> None:
        self._held: dict[str, Mapping[str, int]] = {}
        self._waiting: dict[str, WaitingResize] = {}
        self._capacity: dict[str, int] = {}
        self._begun = False

    def begin(self) -> None:
        """All pods of the node are known: from now on resizes are tried."""
        self._begun = True
        self.retry()

    def set_capacity(self, allocatable: Mapping[str, Quantity]) -> None:
        self._capacity = dict(amounts({name: allocatable[name] for name in RESIZABLE if name in allocatable}))

    def hold(self, uid: str, requests: Mapping[str, int]) -> None:
        """A pod has these requests since an earlier kubelet admitted it."""
        self._held[uid] = requests

    def take(self, uid: str, requests: Mapping[str, int]) -> None:
        """Admit a pod. Raises PodRejected where the node has too little left for it."""
        if problem := shortage(requests, self._others(uid), self._capacity):
            resource = problem.partition("resource: ")[2].partition(",")[0]
            raise PodRejected(f"OutOf{resource}", problem)
        self._held[uid] = requests

    def _others(self, uid: str) -> dict[str, int]:
        """Return what all pods but one have."""
        others = [held for one, held in self._held.items() if one != uid]
        return {name: sum(held.get(name, 0) for held in others) for name in RESIZABLE}

    def release(self, uid: str) -> None:
        """A pod has ended: what it held is free for resizes that wait."""
        self._waiting.pop(uid, None)
        if self._held.pop(uid, None) is not None:
            self.retry()

    def want(self, resize: WaitingResize) -> None:
        """Allocate what a resize wants, now or as soon as the node has it."""
        self._waiting[resize.uid] = resize
        self.retry()

    def withdraw(self, uid: str) -> None:
        """A pod wants again what it has."""
        self._waiting.pop(uid, None)

    def retry(self) -> None:
        """Try the resizes that wait, in their order."""
        if not self._begun:
            return
        for resize in sorted(self._waiting.values(), key=lambda one: one.rank):
            if problem := shortage(resize.wanted, self._others(resize.uid), self._capacity):
                resize.defer(problem)
            else:
                self._held[resize.uid] = resize.wanted
                del self._waiting[resize.uid]
                resize.accept()
