"""The parts that the pages of `gpuplane status` share: glyphs of stages, numbers of GPUs, lines of what and cure."""

from __future__ import annotations

from typing import Final

from gpuplane.api.gpunode import StageState
from gpuplane.api.offers import in_gpus
from gpuplane.cli.status_views import NodeView
from gpuplane.cli.terminal import Console

INDENT: Final = 12  # where a text after `what` begins
SHOWN: Final = 5  # nodes or pods that one entry names; the rest are counted
MARKS: Final = {
    StageState.DONE.value: ("good", "good"),
    StageState.PRESENT.value: ("same", "good"),
    StageState.SKIPPED.value: ("same", "dim"),
    StageState.FAILED.value: ("bad", "bad"),
    StageState.PENDING.value: ("wait", "dim"),
    StageState.RUNNING.value: ("wait", "warn"),
}


def stage_glyphs(node: NodeView, screen: Console, running: str = "") -> str:
    """One glyph for each stage, e.g. `✓=✓✗-----`; `running` replaces the glyph of what is on its way."""
    marks = []
    for state in node.stages.values():
        # A running stage with a reason why it gets nowhere is as bad as a failed one.
        stuck = state == StageState.RUNNING.value and node.what
        glyph, colour = MARKS[StageState.FAILED.value if stuck else state]
        text = running if running and state == StageState.RUNNING.value else screen.glyph(glyph)
        marks.append(screen.paint(text, colour))
    return "".join(marks)


def gpus_of(gpus: float) -> str:
    """`1 GPU`, `0.7 GPUs`."""
    return f"{number_of(gpus)} {'GPU' if gpus == 1 else 'GPUs'}"


def number_of(gpus: float) -> str:
    """`2`, `1.6`, `0.25`."""
    return in_gpus(round(gpus * 100))


def said(screen: Console, **texts: str) -> list[str]:
    """Lines such as `     what   no GPU`, for each of the texts that there is."""
    lines = []
    for name, text in texts.items():
        parts = screen.wrapped(text, INDENT)
        lines += [f"     {'' if number else name:6} {part}" for number, part in enumerate(parts)]
    return lines
