"""The demo's progress: a page that redraws itself on a terminal, one line a change elsewhere, or JSON lines."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from gpulab.demo.story import Story, node_line, page
from gpuplane.cli.terminal import Console

FRAMES_PER_SECOND = 10


class Live:
    """Shows `story` while inside. `form` is auto, tty, plain, json or quiet."""

    def __init__(self, story: Story, screen: Console, form: str) -> None:
        if form == "auto":
            form = "tty" if screen.live else "plain"
        self._story = story
        self._screen = screen
        self._form = "quiet" if screen.quiet else form
        self._task: asyncio.Task[None] | None = None
        self._told: dict[str, Any] = {}
        self._rich: Any = None

    async def __aenter__(self) -> Live:
        if self._form == "tty":
            from rich.console import Console
            from rich.live import Live as RichLive

            self._rich = RichLive(console=Console(file=self._screen.err), auto_refresh=False, transient=False)
            self._rich.start()
        if self._form != "quiet":
            self._task = asyncio.create_task(self._run(), name="demo's page")
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._show(0)
        if self._rich is not None:
            self._rich.stop()

    async def _run(self) -> None:
        tick = 0
        while True:
            self._show(tick)
            tick += 1
            await asyncio.sleep(1 / FRAMES_PER_SECOND)

    def _show(self, tick: int) -> None:
        if self._rich is not None:
            from rich.text import Text

            self._rich.update(Text.from_ansi(page(self._story, self._screen, tick)), refresh=True)
            return
        for name, now, line in self._changes():
            if self._told.get(name) != now:
                self._told[name] = now
                self._screen.say(line)

    def _changes(self) -> list[tuple[str, Any, str]]:
        """(what, its state, the line that tells it), of everything that has a state by now."""
        found: list[tuple[str, Any, str]] = []
        for step in self._story.steps:
            if step.started is None:
                continue
            took = None if step.ended is None else round(step.ended - step.started, 2)
            mark = self._screen.glyph("wait" if took is None else "bad" if step.failed else "good")
            line = f" {mark} {step.name:9} {step.about}" + ("" if took is None else f"  {took:.1f}s")
            if self._form == "json":
                line = msgspec.json.encode(
                    {"step": step.name, "done": took is not None and not step.failed, "seconds": took}
                ).decode()
            found.append((step.name, took is not None, line))
        for node in self._story.nodes:
            line = node_line(node, self._screen)
            if self._form == "json":
                line = msgspec.json.encode({"node": node.name, "stages": node.stages}).decode()
            found.append((f"node {node.name}", node.stages, line))
        return found
