"""fragmentation: Fragmentation Gradient Descent (Weng et al., "Beware of Fragmentation", USENIX ATC 2023).

A free part of a GPU is a fragment for a pod that cannot use it. The expected fragments of a node, over the pods that
are typical, are what it has free that the next pod will not be able to use; a pod goes where they grow least.

As in the paper's own program: a node where a pod does not fit at all is wholly a fragment for it, and so is every
node for a pod without GPUs; scores are whole numbers 0-100, a logistic function of the GPUs that fragments shrink by.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import exp
from typing import Final

from gpuplane.sharing.node import NodeState
from gpuplane.sharing.placement.mix import Mix
from gpuplane.sharing.placement.policy import BEST, Policy
from gpuplane.sharing.placement.room import room, room_after
from gpuplane.sharing.request import Ask, Request, matches

_REMEMBERED: Final = 200_000
_MOST_NODES: Final = 20_000  # remembered; far more than a cluster has


class FragmentationPolicy(Policy):
    name = "fragmentation"

    def __init__(self, mix: Mix) -> None:
        self._typical = mix.typical()
        self._cpus = sorted({typical.shape.cpu_milli for typical in self._typical})
        self._fragments: dict[tuple[tuple[str, ...], int, tuple[int, ...]], float] = {}
        self._models: dict[int, tuple[object, tuple[str, ...]]] = {}

    def order(self, node: NodeState, ask: Ask, fitting: Sequence[int]) -> Iterable[int]:
        free, before = room(node), self.fragments(node, room(node), node.cpu_milli)
        values = {at: self._value(before, self._after(node, free, at, ask, node.cpu_milli), node) for at in fitting}
        return sorted(fitting, key=lambda at: -values[at])

    def value(self, before: NodeState, after: NodeState, request: Request) -> float:
        had = self.fragments(before, room(before), before.cpu_milli)
        return self._value(had, self.fragments(after, room(after), after.cpu_milli), before)

    def quick(self, node: NodeState, ask: Ask, request: Request, fitting: Sequence[int]) -> tuple[int, float] | None:
        free = room(node)
        before = self.fragments(node, free, node.cpu_milli)
        cpu = None if node.cpu_milli is None else node.cpu_milli - request.cpu_milli
        chosen, best, seen = -1, -1.0, set()
        for at in fitting:
            if free[at] not in seen:
                seen.add(free[at])
                value = self._value(before, self._after(node, free, at, ask, cpu), node)
                if value > best:
                    chosen, best = at, value
        return chosen, best

    def fragments(self, node: NodeState, free: tuple[int, ...], cpu: int | None) -> float:
        """Return the part of `free` that the next pod is expected not to be able to use, in units of core."""
        # Pods ask few different amounts of CPU; between two of them it is all the same how much a node has.
        rank = len(self._cpus) if cpu is None else bisect_right(self._cpus, cpu)
        models = self._models_of(node)
        key = (models, rank, tuple(sorted(free)) if len(models) == 1 else free)
        known = self._fragments.get(key)
        if known is None:
            if len(self._fragments) >= _REMEMBERED:
                self._fragments.clear()
            known = self._fragments[key] = self._count(node, free, cpu)
        return known

    def _count(self, node: NodeState, free: tuple[int, ...], cpu: int | None) -> float:
        total, expected = sum(free), 0.0
        for typical in self._typical:
            shape = typical.shape
            useless = total
            if shape.gpus and (cpu is None or cpu >= shape.cpu_milli):
                good = [
                    left
                    for gpu, left in zip(node.gpus, free, strict=True)
                    if left >= shape.core
                    and (not shape.models or any(matches(gpu.model, wanted) for wanted in shape.models))
                ]
                if len(good) >= shape.gpus:
                    useless = total - sum(good)
            expected += typical.part * useless
        return expected

    def _after(self, node: NodeState, free: tuple[int, ...], at: int, ask: Ask, cpu: int | None) -> float:
        return self.fragments(node, (*free[:at], room_after(node, ask, at), *free[at + 1 :]), cpu)

    def _value(self, before: float, after: float, node: NodeState) -> float:
        return int(BEST / (1.0 + exp((after - before) / node.scale)))

    def _models_of(self, node: NodeState) -> tuple[str, ...]:
        """Return the models of a node's GPUs; a single entry where all are equal."""
        known = self._models.get(id(node.gpus))
        if known is None or known[0] is not node.gpus:
            models = tuple(gpu.model for gpu in node.gpus)
            known = (node.gpus, models[:1] if len(set(models)) < 2 else models)
            if len(self._models) >= _MOST_NODES:
                self._models.clear()
            self._models[id(node.gpus)] = known
        return known[1]
