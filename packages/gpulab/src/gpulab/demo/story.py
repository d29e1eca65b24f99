"""The steps of the demo and how they look: plain data and pictures, no cluster."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

import msgspec

from gpulab.demo.verdict import Promise
from gpuplane.cli.models import short_model
from gpuplane.cli.status_parts import stage_glyphs
from gpuplane.cli.status_views import NodeView
from gpuplane.cli.terminal import SPINNER, Console, count

TITLE = "embedded cluster: no Kubernetes, no Docker, no GPU"
REAL_TITLE = "Kubernetes {release}, simulated machines: no Docker, no GPU"


class StoryStep(msgspec.Struct):
    """One step of the story. `started` and `ended` are seconds of the demo's clock, None before that; a step that
    `failed` ended without being done."""

    name: str
    about: str
    started: float | None = None
    ended: float | None = None
    failed: bool = False


class Story:
    """The story so far. `clock` returns the seconds since the demo began."""

    def __init__(self, steps: Sequence[tuple[str, str]], clock: Callable[[], float], title: str = TITLE) -> None:
        self.title = title
        self.steps = [StoryStep(name, about) for name, about in steps]
        self.clock = clock
        self.nodes: Sequence[NodeView] = ()
        self.lines: list[str] = []

    def begin(self, name: str) -> StoryStep:
        step = next(step for step in self.steps if step.name == name)
        step.started = self.clock()
        return step

    def has_begun(self, name: str) -> bool:
        return any(step.name == name and step.started is not None for step in self.steps)

    def fail(self, step: StoryStep) -> None:
        step.failed = True
        self.end(step)

    def end(self, step: StoryStep) -> float:
        """Close a step; the seconds it took."""
        step.ended = self.clock()
        return step.ended - (step.started or 0.0)


def page(story: Story, screen: Console, tick: int) -> str:
    """The picture of a demo that runs; `tick` turns the spinner."""
    frames = SPINNER[1 if screen.ascii else 0]
    spinner = frames[tick % len(frames)]
    lines = [f"gpuplane demo    {story.title}   {story.clock():5.1f}s", ""]
    for step in story.steps:
        if step.ended is not None:
            verdict = "bad" if step.failed else "good"
            mark, took = screen.paint(screen.glyph(verdict), verdict, screen.err), step.ended - (step.started or 0.0)
        elif step.started is not None:
            mark, took = spinner, story.clock() - step.started
        else:
            mark, took = screen.paint(screen.glyph("wait"), "dim", screen.err), None
        lines.append(f" {mark} {step.name:9} {step.about:60} {'' if took is None else f'{took:5.1f}s'}".rstrip())
    if story.nodes:
        lines += ["", f" {'NODE':7} {'MACHINE':23} {'STAGES':9}  GPUS"]
        lines += [node_line(node, screen, spinner) for node in story.nodes]
    return "\n".join([*lines, *([""] if story.lines else []), *story.lines])


def node_line(node: NodeView, screen: Console, spinner: str = "") -> str:
    machine = f"{node.os:12} {node.runtime}"
    model = f"{short_model(node.gpus[0].model)} {screen.glyph('times')}{len(node.gpus)}" if node.gpus else ""
    if node.ready:
        state = "ready, had driver" if node.stages.get("driver") == "present" else "ready"
    elif "failed" in node.stages.values():
        state = f"{node.stage} failed"
    else:
        state = node.stage
    return f" {node.name:7} {machine:23} {stage_glyphs(node, screen, spinner)}  {model:18} {state}".rstrip()


def stage_times(nodes: Sequence[NodeView]) -> list[str]:
    """A table of the seconds that each stage took, a column for each node."""
    widths = {node.name: max(len(node.name), 6) + 2 for node in nodes}
    lines = [" " + f"{'seconds':14}" + "".join(f"{name:>{width}}" for name, width in widths.items())]
    for stage in nodes[0].stages if nodes else ():
        cells = "".join(f"{cell(node, stage):>{widths[node.name]}}" for node in nodes)
        lines.append(f" {stage:14}{cells}")
    return lines


def verdict_line(promises: Sequence[Promise], seconds: float, screen: Console) -> str:
    """`✓ the whole story in 18.2s`, or how many promises were not met."""
    broken = [promise.name for promise in promises if not promise.kept]
    if not broken:
        return f"{screen.paint(screen.glyph('good'), 'good')} the whole story in {seconds:.1f}s"
    text = f"{len(broken)} of {count(len(promises), 'promise')} not kept after {seconds:.1f}s: {', '.join(broken)}"
    return f"{screen.paint(screen.glyph('bad'), 'bad')} {text}"


def ending(promises: Sequence[Promise], screen: Console) -> list[str]:
    """Each promise with its verdict; long ones go on below themselves."""
    lines = []
    for promise in promises:
        verdict = "good" if promise.kept else "bad"
        head = f" {screen.glyph(verdict)} {promise.name:9} {promise.which:17} "
        wrapped = textwrap.wrap(
            promise.how, max(screen.width, 60), initial_indent=head, subsequent_indent=" " * len(head)
        )
        lines += [screen.paint(line, verdict) if not promise.kept else line for line in wrapped]
    return lines


def cell(node: NodeView, stage: str) -> str:
    """`0.84`, or the state of a stage that has no time."""
    state = node.stages[stage]
    if state in ("done", "present") and stage in node.took:
        return f"{node.took[stage]:.2f}" + ("=" if state == "present" else "")
    return {"pending": "-", "running": "..."}.get(state, state)
