"""Differences between nodes and their predictions, remembered for an hour after the nodes have gone.

A pod that does not fit what a node turned out to offer leaves the node empty, and the empty node goes. Forgotten at
once, the same node would be bought again and again. CPU, memory, pods and disk are those of the machine and its image,
so one node is enough. GPUs of one node may be broken: two nodes must lack the same resource, and a node that has what
was predicted ends the lesson.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from gpuplane.autoscaler.options import Learned, LessonKey
from gpuplane.autoscaler.overhead import DISK
from kubekit.kube import Clock
from kubekit.scheduling.podinfo import Requests

LESSON_SECONDS: Final = 3600.0
OF_MACHINES: Final = frozenset(("cpu", "memory", "pods", DISK))
_WITNESSES: Final = 2


class JoinedNode(msgspec.Struct, frozen=True):
    """A node that has joined: `real` is what it offers. Until it is `initialized`, GPUs count as predicted."""

    key: LessonKey
    uid: str
    real: Requests
    initialized: bool


class Lessons:
    """The differences that count now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._machines: dict[LessonKey, tuple[Requests, float]] = {}  # -> what counts, and until when
        self._lacking: dict[LessonKey, dict[str, tuple[Requests, float]]] = {}  # by the claims that lacked something

    def learn(self, nodes: Iterable[JoinedNode]) -> Learned:
        """Return what counts instead of predictions; of several nodes that are there, the last one's.

        Args:
            nodes: those that are there, in the order in which they were bought.
        """
        now = self._clock.now()
        found: dict[LessonKey, Requests] = {}
        for node in nodes:
            if node.initialized:
                found[node.key] = node.real
            self._take(node, now + LESSON_SECONDS)
        self._forget(now)
        machines = {key: machine for key, (machine, _) in self._machines.items()}
        return {
            key: found.get(key, self._remembered(key)) | machines.get(key, {}) for key in {*machines, *self._lacking}
        }

    def _take(self, node: JoinedNode, until: float) -> None:
        machine = {name: amount for name, amount in node.real.items() if name in OF_MACHINES}
        self._machines[node.key] = (machine, until)
        rest = {name: node.real.get(name, 0) for name, _ in node.key[1] if name not in OF_MACHINES}
        if any(rest[name] < amount for name, amount in node.key[1] if name in rest):
            self._lacking.setdefault(node.key, {})[node.uid] = (rest, until)
        elif node.initialized:
            self._lacking.pop(node.key, None)

    def _forget(self, now: float) -> None:
        self._machines = {key: one for key, one in self._machines.items() if one[1] > now}
        for key, nodes in list(self._lacking.items()):
            self._lacking[key] = {uid: one for uid, one in nodes.items() if one[1] > now}
            if not self._lacking[key]:
                del self._lacking[key]

    def _remembered(self, key: LessonKey) -> Requests:
        """Return the prediction, with what nodes lacked."""
        found = dict(key[1])
        lacking = [rest for rest, _ in self._lacking.get(key, {}).values()]
        if len(lacking) >= _WITNESSES:
            found |= {name: max(rest[name] for rest in lacking) for name in lacking[0]}
        return found
