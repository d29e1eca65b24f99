"""The part of `gpuplane explain POD` about node pools: what the autoscaler has done, and what each pool would buy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuplane.autoscaler.providers.aws_types import REGION
from gpuplane.cli.terminal import Console, prefixed
from gpuplane.explain.answer import Buying, Explanation, PoolAnswer

_GOOD: Final = ("coming", "nominated")
_SPOT: Final = "spot"


def buying_lines(buying: Buying, screen: Console) -> Iterator[str]:
    """Yield the lines about the autoscaler: its work for the pod, and the cure where it can do nothing."""
    glyph, colour = ("good", "good") if buying.state in _GOOD else ("warn", "warn")
    yield from prefixed(f" {screen.paint(screen.glyph(glyph), colour)} ", buying.text, screen)
    if buying.cure:
        yield from prefixed("   cure   ", buying.cure, screen)


def pool_lines(what: Explanation, screen: Console) -> Iterator[str]:
    """Yield a line for each node pool: the node that it would buy, or the rules that say no, with cures."""
    if not what.pools:
        return
    yield ""
    width = max(len("POOL"), *(len(answer.pool) for answer in what.pools))
    yield f" {'POOL':{width}}   BUYS"
    effects: dict[str, None] = {}
    for answer in what.pools:
        if answer.type:
            yield from prefixed(f" {answer.pool:{width}}   ", _bought(answer), screen)
            for preference in answer.given_up:
                yield from prefixed(f" {'':{width}}   gives up ", preference, screen)
            continue
        mark = screen.paint(screen.glyph("bad"), "bad") + " "
        for number, rule in enumerate((answer.why_not, *answer.also_not)):
            yield from prefixed(f" {'' if number else answer.pool:{width}}   {mark}", rule, screen)
        for number, cure in enumerate(answer.cures):
            yield from prefixed(f" {'':{width}}   {'or  ' if number else 'cure'}   ", cure.change, screen)
            if cure.place:
                yield f" {'':{width}}          buys {cure.place}"
            effects.update({cure.effect: None} if cure.effect else {})
    for effect in effects:
        yield ""
        yield from prefixed("   ", f"where the pod is changed: {effect}", screen)
    if priced := _priced(what):
        yield ""
        yield from prefixed("   ", priced, screen)
    if what.unread_volumes:
        kinds = " and ".join(what.unread_volumes)
        yield ""
        yield from prefixed("   ", f"Where its volumes are is left out: {kinds} may not be read.", screen)


def _bought(answer: PoolAnswer) -> str:
    if answer.capacity_type == _SPOT:
        return f"{answer.type} spot, at most {answer.price:.3f} $/h"
    more = "; spot is allowed and costs less" if answer.spot else ""
    return f"{answer.type} {answer.capacity_type}, {answer.price:.3f} $/h{more}"


def _priced(what: Explanation) -> str:
    """Say which prices these are, and which of them are unknown."""
    priced = [answer for answer in what.pools if answer.type or any(cure.place for cure in answer.cures)]
    if not priced:
        return ""
    elsewhere = sorted({answer.region for answer in priced} - {REGION, ""})
    unknown = ["spot"] if any(answer.spot for answer in priced) else []
    unknown += [f"on-demand in {region}" for region in elsewhere]
    text = f"Prices are on-demand, of the built-in list ({what.priced})."
    if unknown:
        text += f" Those of {' and '.join(unknown)} are known to the cloud only."
    return text
