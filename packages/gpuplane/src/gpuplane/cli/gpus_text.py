"""Formats `gpuplane status gpus`: every GPU with its holders. A cell of a bar is 5%."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from string import ascii_uppercase

from gpuplane.api.gpunode import GPU
from gpuplane.api.offers import GpuUnits, in_gpus
from gpuplane.cli.holders import WHOLE, HeldPart, PodHolder, free_core, in_units
from gpuplane.cli.models import short_model
from gpuplane.cli.status_parts import number_of
from gpuplane.cli.status_views import NodeView, Overview
from gpuplane.cli.terminal import Console

CELLS = 20
_NAME = 12  # columns that the name of a node has at least


def gpus_page(seen: Overview, screen: Console, *, wide: bool = False) -> str:
    """The page; `wide` adds each GPU's address and UUID."""
    return "\n\n".join("\n".join(_node(node, screen, wide=wide)) for node in seen.nodes)


def _node(node: NodeView, screen: Console, *, wide: bool) -> Iterator[str]:
    verdict = ("good", "ready") if node.ready else ("bad", node.stage)
    mark = screen.paint(f"{screen.glyph(verdict[0])} {verdict[1]}", verdict[0])
    free = f"{number_of(node.held)} held   {number_of(node.free)} free   "
    left = screen.width - len(free) - len(verdict[1]) - 4  # columns for the name and the model
    size = f" {node.gpus[0].memory_mib / 1024:.0f} GiB" if node.gpus else ""
    size += f" {screen.glyph('times')}{len(node.gpus)}"
    model = short_model(node.gpus[0].model) if node.gpus else "no GPU seen"
    model = f"   {screen.elided(model, left - len(size) - 3 - _NAME)}{size}"
    begin = 46 if screen.limit is None else min(46, left)
    yield f"{screen.elided(node.name, left - len(model)) + model:{begin}}  {free}{mark}"
    if not node.gpus:
        return
    known = is_known(node)
    if known:
        yield screen.paint(f"    {'CORE':{CELLS}}  {'MEMORY':{CELLS}}  HELD BY", "dim")
    for gpu in node.gpus:
        held = [
            (holder.pod if holder.shown else "", part)
            for holder in node.held_by
            for part in holder.parts
            if part.index == gpu.index
        ]
        named = [(letter_of(at), pod, part) for at, (pod, part) in enumerate(held)]
        yield from _gpu(gpu, named if known else None, node.sick.get(gpu.uuid, ""), screen)
        if wide:
            yield f"    {gpu.pci}  {gpu.uuid}"
    if not known:
        yield from (f"    {held_below(holder, node.units, screen)}" for holder in node.held_by if holder.shown)


def is_known(node: NodeView) -> bool:
    """Return whether it is known which pod holds which of the node's GPUs."""
    return free_core(node.gpus, {}, node.held_by) is not None


def _gpu(gpu: GPU, held: Sequence[tuple[str, str, HeldPart]] | None, sick: str, screen: Console) -> Iterator[str]:
    fault = f"{screen.glyph('bad')} {sick}" if sick else ""
    if held is None:
        parts = screen.wrapped(fault, 4) or [""]
        yield f"{gpu.index:>2}  {screen.paint(parts[0], 'bad') if fault else ''}".rstrip()
        yield from (f"    {screen.paint(part, 'bad')}" for part in parts[1:])
        return
    room = screen.width - 2 * CELLS - 8
    beside = bool(fault) and (screen.limit is None or len(fault) <= room)
    words = [screen.paint(fault, "bad")] if beside else []
    for letter, pod, part in held:
        amount = screen.elided(amount_of(part), room - _NAME - 3)
        if pod:
            words.append(f"{letter} {screen.elided(pod, room - 3 - len(amount))} {amount}")
    core = cells([(letter, part.core / WHOLE) for letter, _, part in held], screen)
    memory = cells([(letter.lower(), part.memory_mib / max(1, gpu.memory_mib)) for letter, _, part in held], screen)
    yield f"{gpu.index:>2}  {core}  {memory}  {words[0] if words else ''}".rstrip()
    yield from (f"    {'':{2 * CELLS + 2}}  {word}" for word in words[1:])
    if fault and not beside:
        yield from (f"    {screen.paint(part, 'bad')}" for part in screen.wrapped(fault, 4))


def letter_of(at: int) -> str:
    """The letter of the `at`-th holder of a GPU."""
    return ascii_uppercase[at % len(ascii_uppercase)]


def cells(parts: Sequence[tuple[str, float]], screen: Console) -> str:
    """`AAAAAABBBB░░░░░░░░░░`: letters and the part (0-1) that each has of the bar."""
    bar, total = "", 0.0
    for letter, part in parts:
        total += part
        bar += letter * (round(CELLS * min(1.0, total)) - len(bar))
    return bar + screen.glyph("empty") * (CELLS - len(bar))


def amount_of(part: HeldPart) -> str:
    """Return the part of a GPU that a pod holds: `whole`, `30% 5G`, `2 replicas`."""
    if part.unit:
        return part.unit
    if part.core >= WHOLE:
        return "whole"
    return f"{part.core}%" + (f" {part.memory_mib / 1024:.1f}G".replace(".0G", "G") if part.memory_mib else "")


def held_below(holder: PodHolder, units: Sequence[GpuUnits], screen: Console) -> str:
    """Of a pod that was placed without the extender, which GPUs it has is known to its node alone."""
    gpus = in_gpus(round(holder.gpus * WHOLE))
    held = in_units(holder.units, units) or f"{gpus} {'GPU' if gpus == '1' else 'GPUs'}"
    end = f": {screen.elided(held, screen.width - 50)}, its node alone knows which"
    return f"held by {screen.elided(holder.pod, screen.width - len(end) - 12)}{end}"
