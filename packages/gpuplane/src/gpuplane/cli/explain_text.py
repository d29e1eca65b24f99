"""Formats the Explanation of `gpuplane explain POD`, at the width of the screen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from gpuplane.cli.explain_pools_text import buying_lines, pool_lines
from gpuplane.cli.explain_scheduling_text import eviction_lines, gang_lines, queue_lines
from gpuplane.cli.models import short_model
from gpuplane.cli.terminal import Console, age, prefixed
from gpuplane.explain.answer import HELD_WHOLE, TOGETHER, Explanation, FreeGPU, FreeNode, Held, ReasonTally
from gpuplane.explain.proving import gib
from gpuplane.sharing.placement import REASONS

NODES: Final = 8  # nodes whose GPUs are listed; the rest are counted
_CELL: Final = 16
_MIB: Final = re.compile(r"\b(\d+) MiB\b")  # placement's unit, in what it says
_WORDS: Final = {**REASONS, "lost": "lost", HELD_WHOLE: "held whole", TOGETHER: "would do, but too few on one node"}
_MARKS: Final = {"memory": "mem", "core": "core", "model": "model", "uuid": "uuid", "held": "part"}


def page(what: Explanation, screen: Console, *, wide: bool = False) -> str:
    """The page; `wide` lists the GPUs of every node that GPUs keep from taking the pod."""
    lines = [*_head(what, screen), *_body(what, screen, wide=wide)]
    return "\n".join(line.rstrip() for line in lines)


def _head(what: Explanation, screen: Console) -> Iterator[str]:
    """The pod, its state and the verdicts on it, on one line where it is wide enough."""
    ago = age(what.since, datetime.fromisoformat(what.now)) if what.now else ""
    if what.state == "placed":
        parts = [what.pod, f"on {what.node} {f'for {ago}, ' if ago else ''}holds {what.asks}".rstrip()]
    elif what.state == "ended":
        parts = [what.pod, what.note, "holds nothing"]
    elif what.state == "nothing":
        parts = [what.pod, "asks for no GPU"]
    else:
        parts = [what.pod, f"waiting {ago} for {what.asks}" if what.asks else f"waiting {ago}"]
        if what.can_ever_run is None:
            parts.append("can ever run: unknown")
        else:
            ever = ("good", "yes") if what.can_ever_run else ("bad", "no")
            parts.append(f"can ever run: {screen.paint(ever[1], ever[0])}")
        if what.quota:
            parts.append(f"quota {screen.paint(what.quota, 'good' if what.quota == 'ok' else 'bad')}")
        if what.queue:
            parts.append(f"queue {what.queue}")
    yield from _flowed(parts, screen)


def _flowed(parts: Iterable[str], screen: Console) -> Iterator[str]:
    line = ""
    for part in parts:
        if line and len(line) + 3 + len(part) > screen.width:
            yield line
            line = "  "
        line += ("   " if line.strip() else "") + part
    yield line


def _body(what: Explanation, screen: Console, *, wide: bool) -> Iterator[str]:
    if what.findings:
        yield ""
        for finding in what.findings:
            yield from prefixed(f" {screen.paint(screen.glyph('bad'), 'bad')} ", finding, screen)
        yield ""
        yield f"   gpuplane explain {what.findings[0].partition(' ')[0]} says more"
        return
    if what.state == "placed":
        yield from _placed(what, screen)
    elif what.state == "waiting":
        yield from _waiting(what, screen, len(what.free) if wide else NODES)
    if what.note and what.state != "ended":
        yield ""
        yield from prefixed("   ", what.note, screen)


# -- placed ------------------------------------------------------------------------------------------------------------


def _placed(what: Explanation, screen: Console) -> Iterator[str]:
    if what.held:
        yield ""
        rows = [("CONTAINER", "GPU", "MODEL", "HOLDS", "UUID"), *(_row(held) for held in what.held)]
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        for number, row in enumerate(rows):
            yield " " + "   ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
            if number and what.held[number - 1].fault:
                yield from prefixed(
                    f"   {screen.paint(screen.glyph('bad'), 'bad')} ", what.held[number - 1].fault, screen
                )
    if what.runs_on:
        places = {held.gpu for held in what.held}
        mine = ",".join(sorted({place.rpartition("/")[2] for place in places}, key=int)) if places else ""
        here = f"{what.node}/{mine}" if mine else what.node
        yield ""
        # The kubelet chooses the GPU of a place without one.
        same = {here: "the same place", what.node: "the same node"}
        yield f" placed again, it would go to {same.get(what.runs_on, what.runs_on)}"


def _row(held: Held) -> tuple[str, str, str, str, str]:
    memory = f" + {gib(held.memory_mib)}" if held.memory_mib else ""
    if held.unit:
        return held.container, held.gpu, short_model(held.model), held.unit + memory.replace(" + ", ", "), held.uuid
    holds = f"whole{memory.replace(' + ', ', ')}" if held.core >= 100 else f"{held.core}% core{memory}"
    return held.container, held.gpu, short_model(held.model), holds, held.uuid


# -- waiting -----------------------------------------------------------------------------------------------------------


def _waiting(what: Explanation, screen: Console, nodes: int) -> Iterator[str]:
    width = max(len(str(tally.count)) for tally in (*what.node_reasons, *what.gpu_reasons)) if what.node_reasons else 1
    yield ""
    if what.unread:
        unread = ", ".join(what.unread)
        yield from prefixed(" ", f"This user may not list {unread}: only events say why the pod waits.", screen)
        for line in what.reported:
            yield ""
            yield from prefixed("   ", line, screen)
        if not what.reported:
            yield "   no scheduler has reported why"
        yield ""
        yield from prefixed(" cure     ", f"an administrator runs gpuplane explain {what.pod}", screen)
        return
    if what.buying is not None:
        yield from buying_lines(what.buying, screen)
        yield ""
    yield from queue_lines(what, screen)
    yield from gang_lines(what, screen)
    if not what.nodes:
        yield " the cluster has no nodes"
        yield from pool_lines(what, screen)
        return
    if what.gang is not None:
        yield " the pod by itself:"
    yield from _tallies("node", what.nodes, what.node_reasons, width, screen)
    if what.gpus:
        yield from _tallies("GPU", what.gpus, what.gpu_reasons, width, screen)
    if what.free:
        yield ""
        yield from _table(what.free, what.free_not_listed, screen, nodes)
    yield from eviction_lines(what, screen)
    if what.cures:
        yield ""
        size = max(len(cure.change) for cure in what.cures)
        beside = 10 + size + 15 + max(len(cure.place) for cure in what.cures) <= screen.width
        first = 1  # of those with the same effect, which is printed once
        for number, cure in enumerate(what.cures, 1):
            head = "cure" if number == 1 else ""
            if beside:
                yield f" {head:4} {number}   {cure.change:{size}}   runs now on {cure.place}"
            else:
                yield from prefixed(f" {head:4} {number}   ", cure.change, screen)
                yield f"          runs now on {cure.place}"
            if number < len(what.cures) and what.cures[number].effect == cure.effect:
                continue
            if cure.effect:
                numbers = f"{first} to {number}: " if first < number else ""
                yield from prefixed("          ", f"({numbers}{cure.effect})", screen)
            first = number + 1
    elif not (what.runs_on or _fits_alone(what) or any(one.type or one.cures for one in what.pools)):
        yield ""
        none = "no single change of the pod or the cluster lets it run"
        yield from prefixed(" cure     ", none, screen)
    yield from pool_lines(what, screen)
    if what.unread_scheduling:
        yield ""
        unread = ", ".join(what.unread_scheduling)
        yield from prefixed("   ", f"This user may not list {unread}, so these are left out of the answer.", screen)


def _fits_alone(what: Explanation) -> bool:
    """Return whether a node has room for the pod, so that it waits for its gang, its queue or a nominated pod."""
    return any(tally.reason == "fits" for tally in what.node_reasons)


def _tallies(thing: str, total: int, tallies: Iterable[ReasonTally], width: int, screen: Console) -> Iterator[str]:
    head = f" {total} {thing}{'' if total == 1 else 's'}"
    for number, tally in enumerate(tallies):
        words = _WORDS.get(tally.reason) or _MIB.sub(lambda found: gib(int(found[1])), tally.reason)
        if tally.missing:
            words = f"{words:13} nearest {tally.nearest}, {tally.missing} missing"
        elif tally.nearest:
            words = f"{words:13} {tally.nearest}"
        yield from prefixed(f"{head if not number else '':10} {tally.count:>{width}}  ", words, screen)


def _table(nodes: tuple[FreeNode, ...], unlisted: int, screen: Console, most: int) -> Iterator[str]:
    """Format the free part of each GPU, in as many columns as the screen has room for.

    `unlisted` is the number of further nodes, whose GPUs are unknown.
    """
    shown = sorted(nodes, key=_distance)[:most]
    name = max(len("FREE"), *(len(node.node) for node in shown))
    columns = max(1, min(max(len(node.gpus) for node in shown), (screen.width - name - 4) // _CELL))
    heads = "".join(f"{f'GPU {column}':{_CELL}}" for column in range(columns))
    yield f" {'FREE':{name}}   {heads if any(node.exact for node in shown) else ''}"
    for node in sorted(shown, key=lambda node: node.node):
        if not node.exact:
            free = sum(gpu.reason in ("", "model", "uuid") for gpu in node.gpus)
            yield f" {node.node:{name}}   {free} of {len(node.gpus)} wholly free; which are held is unknown"
            continue
        for start in range(0, len(node.gpus), columns):
            row = node.gpus[start : start + columns]
            more = f"{f'GPU {start}-':>7} " if start and columns > 1 else ""
            cells = "".join(f"{_cell(gpu):{_CELL}}" for gpu in row)
            yield f" {node.node if not start else more:{name}}   {cells}"
    if rest := unlisted + len(nodes) - len(shown):
        yield f" {'':{name}}   and {rest} nodes more"


def _distance(node: FreeNode) -> tuple[int, int]:
    """Nodes with the most free first."""
    return -max((gpu.core for gpu in node.gpus), default=0), -max((gpu.memory_mib for gpu in node.gpus), default=0)


def _cell(gpu: FreeGPU) -> str:
    if gpu.reason == "lost":
        return "lost"
    if gpu.reason == HELD_WHOLE:
        return "held whole"
    return f"{gpu.core:>2}% {_short(gpu.memory_mib):>4} {_MARKS.get(gpu.reason, '')}".rstrip()


def _short(mib: int) -> str:
    """`15G`, `3.7G`, `512M`."""
    return f"{mib}M" if 0 < mib < 1024 else f"{round(mib / 1024, 1 if mib < 10_240 else None):g}G"
