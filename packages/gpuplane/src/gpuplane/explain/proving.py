"""Proves cures: a change is listed only if the pod is placed once it is made. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from gpuplane.explain.world import NodeVerdict, Object, World
from kubekit.errors import InvalidInput

TRIES: Final = 50  # of each kind; a large cluster has too many values to try them all


class Cure(msgspec.Struct, frozen=True):
    """`change` as one says it; `place` is where the pod would run then, node/GPU. `effect` is what the change costs
    besides: the pod, a node, or what others notice.
    """

    change: str
    place: str
    effect: str = ""


def runs_on(verdicts: list[NodeVerdict]) -> str:
    """The best place that the verdicts leave, as node/GPU; empty when there is none."""
    good = [verdict for verdict in verdicts if verdict.placement is not None]
    if not good:
        return ""
    best = max(good, key=lambda verdict: verdict.placement.score if verdict.placement else -1)
    return place_of(best)


def place_of(verdict: NodeVerdict) -> str:
    """Return the place of the verdict: node/0,1."""
    assert verdict.placement is not None
    parts = [part.index for parts in verdict.placement.assignment.containers.values() for part in parts]
    return f"{verdict.node}/{','.join(map(str, sorted(set(parts))))}" if parts else verdict.node


def proved(world: World, change: str, raw: Object, nodes: Iterable[str] | None = None) -> Iterator[Cure]:
    """The cure, if the pod as it is in `raw` has a place; `nodes` are those where that can be, all when None."""
    try:
        place = runs_on(world.judge(raw, nodes))
    except InvalidInput:
        return
    if place:
        yield Cure(change, place)


def with_effect(found: Iterable[Cure], effect: str) -> Iterator[Cure]:
    """Yield the cures with what they cost."""
    return (msgspec.structs.replace(cure, effect=effect) for cure in found)


def gib(mib: int) -> str:
    """`11 GiB`, `5.25 GiB`, `512 MiB`."""
    return f"{mib} MiB" if mib < 1024 else f"{round(mib / 1024, 2):g} GiB"
