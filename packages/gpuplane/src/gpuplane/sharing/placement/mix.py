"""The mix of requests: what pods have requested so far, the best guess at what they will request.

The scheduler updates it (`Mix.seen` for each pod). Older pods fade, so that last month counts less than today. The
policies that price free capacity read it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuplane.sharing.request import Request

_POPULAR: Final = 0.95  # the most common shapes that make up this part of all pods are typical
_FADE_EVERY: Final = 100_000.0  # pods; then all counts are halved


class Shape(msgspec.Struct, frozen=True, order=True):
    """Pods that are one to the policies: `gpus` GPUs with `core` of each; none of both for a pod without GPUs."""

    cpu_milli: int
    gpus: int
    core: int
    memory_mib: int = 0
    models: tuple[str, ...] = ()


class Typical(msgspec.Struct, frozen=True):
    """A shape and the part of the pods that have it, 0-1."""

    shape: Shape
    part: float


def shape_of(request: Request) -> Shape:
    """Return the shape of a pod: its GPUs, each held as much as the largest container holds a GPU."""
    lasting = [ask for ask in request.asks if ask.lasts] or list(request.asks)
    if not lasting:
        return Shape(request.cpu_milli, 0, 0)
    most = max(lasting, key=lambda ask: ask.core)
    gpus = sum(max(1, ask.gpus) for ask in lasting)
    return Shape(request.cpu_milli, gpus, most.each, most.memory_mib, request.models)


class Mix:
    def __init__(self) -> None:
        self.counts: dict[Shape, float] = {}
        self.total = 0.0

    def seen(self, request: Request) -> None:
        """Count the request of a pod."""
        shape = shape_of(request)
        self.counts[shape] = self.counts.get(shape, 0.0) + 1.0
        self.total += 1.0
        if self.total > _FADE_EVERY:
            self.counts = {shape: count / 2 for shape, count in self.counts.items() if count > 1.0}
            self.total = sum(self.counts.values())

    def typical(self) -> tuple[Typical, ...]:
        """Return the most common shapes that together make up 95% of the pods, the most common first."""
        found: list[tuple[Shape, float]] = []
        covered = 0.0
        for shape, count in sorted(self.counts.items(), key=lambda item: (-item[1], item[0])):
            if covered >= _POPULAR * self.total:
                break
            found.append((shape, count))
            covered += count
        return tuple(Typical(shape, count / covered) for shape, count in found)
