"""The loop of `gpuplane top`: informers and the meter's readings in, a drawn screen out; keys between them.

A key redraws from rows that are there. New facts make new rows at most every `PAUSE_SECONDS`, and less often where
that takes long.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from gpuplane.cli.explain import explained
from gpuplane.cli.explain_text import page
from gpuplane.cli.forms import as_document
from gpuplane.cli.status_reading import Follower, cluster_name, observe
from gpuplane.cli.status_views import Overview
from gpuplane.cli.terminal import Console, harmless
from gpuplane.cli.top.rows import TopRow, gpu_rows, node_rows, pod_rows
from gpuplane.cli.top.terminal import draw, pressed_keys, whole_window
from gpuplane.cli.top.text import top_lines
from gpuplane.cli.top.view import KeyAction, RowKind, TopView, explained_pod, pressed, shown_rows
from gpuplane.cli.use_reading import UseReader
from kubekit.errors import KubekitError, NoAnswer
from kubekit.kube import Client
from kubekit.kube.tasks import first_of

PAUSE_SECONDS: Final = 0.5
AGE_SECONDS: Final = 5.0  # until ages are drawn again where nothing changes


def top(options: Namespace, screen: Console) -> int:
    """0 once the cluster was displayed."""
    live = screen.out.isatty() and sys.stdin.isatty() and not options.once and options.output == "text"
    if live and os.environ.get("TERM") not in ("dumb", None):
        asyncio.run(_stay(options, screen))
        return 0
    return asyncio.run(_once(options, screen))


def first_view(options: Namespace) -> TopView:
    """Return the view that the flags ask for."""
    return TopView(RowKind(options.what), options.sort, options.filter, all=options.all)


def rows_of(seen: Overview, use: UseReader, what: RowKind) -> list[TopRow]:
    """Return all rows of a kind."""
    gpus = gpu_rows(seen, use.current)
    if what is RowKind.GPUS:
        return gpus
    return node_rows(gpus, seen) if what is RowKind.NODES else pod_rows(gpus, seen)


async def _once(options: Namespace, screen: Console) -> int:
    async with Client.connect(options.kubeconfig, options.context, user_agent="gpuplane-top") as client:
        use = UseReader(client)
        seen, _ = await asyncio.gather(observe(client), use.read())
        view = msgspec.structs.replace(first_view(options), has_keys=False)
        rows = shown_rows(rows_of(seen, use, view.what), view)
        if options.output != "text":
            data: dict[str, Any] = {
                "source": use.current.source,
                "notMeasured": use.current.why,
                "rows": [{**msgspec.to_builtins(row), "matter": row.matter.name.lower()} for row in rows],
            }
            screen.print(as_document("Top", data, options.output))
            return 0
        lines = top_lines(
            cluster_name(client), seen, use.current, rows, view, screen, (screen.width, 0), datetime.now(UTC)
        )
        for line in lines[:-1]:  # without the keys
            screen.print(line.rstrip())
    return 0


async def _stay(options: Namespace, screen: Console) -> None:
    async with Client.connect(options.kubeconfig, options.context, user_agent="gpuplane-top") as client:
        follower, use = Follower(client), UseReader(client)
        try:
            try:
                async with asyncio.timeout(options.timeout):
                    await follower.start()
            except TimeoutError:
                where = cluster_name(client)
                raise NoAnswer(f"the cluster did not answer within {options.timeout:g} s", where=where) from None
            with whole_window(screen.out, sys.stdin.fileno()):
                await _Live(client, follower, use, first_view(options), screen).run()
        finally:
            await follower.aclose()


class _Live:
    """The screen while a user looks at it."""

    def __init__(self, client: Client, follower: Follower, use: UseReader, view: TopView, screen: Console) -> None:
        self._client, self._follower, self._use = client, follower, use
        self._view, self._screen = view, screen
        self._changed, self._done = asyncio.Event(), asyncio.Event()
        self._explaining: asyncio.Task[None] | None = None
        self._seen = follower.seen()
        self._rows: list[TopRow] = []
        self._shown: list[TopRow] = []

    async def run(self) -> None:
        """Draw until the user has enough."""
        loop, keys = asyncio.get_running_loop(), sys.stdin.fileno()
        loop.add_reader(keys, self._keys, keys)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._done.set)
        loop.add_signal_handler(signal.SIGWINCH, self._draw)
        self._read()
        tasks = [
            asyncio.create_task(self._follow(), name="top cluster"),
            asyncio.create_task(self._refresh(), name="top screen"),
            asyncio.create_task(self._use.run(self._changed.set), name="top use"),
            asyncio.create_task(self._done.wait(), name="top keys"),
        ]
        try:
            await first_of(*tasks)
        finally:
            loop.remove_reader(keys)
            loop.remove_signal_handler(signal.SIGWINCH)
            for task in (*tasks, *([self._explaining] if self._explaining else [])):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            await self._follower.changed()
            self._changed.set()

    async def _refresh(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGE_SECONDS):
                    await self._changed.wait()
            self._changed.clear()
            began = loop.time()
            self._read()
            await asyncio.sleep(max(PAUSE_SECONDS, loop.time() - began))

    def _read(self) -> None:
        self._seen = self._follower.seen()
        self._rows = rows_of(self._seen, self._use, self._view.what)
        self._draw()

    def _keys(self, keys: int) -> None:
        for key in pressed_keys(keys):
            before = self._view
            self._view, action = pressed(before, key, self._shown, self._lines() - 6)
            if action is KeyAction.QUIT:
                self._done.set()
                return
            if action is KeyAction.EXPLAIN:
                self._explain()
            if self._view.what is not before.what:
                self._rows = rows_of(self._seen, self._use, self._view.what)
        self._draw()

    def _explain(self) -> None:
        pod = explained_pod(self._view, self._shown, [one.pod for one in self._seen.waiting_pods])
        if not pod:
            self._say(["no pod waits, and no pod holds this GPU"])
            return
        self._say([f"asking why {pod} is where it is"])
        self._explaining = asyncio.create_task(self._explained(pod), name="top explain")

    async def _explained(self, pod: str) -> None:
        namespace, _, name = pod.partition("/")
        try:
            found = await explained(self._client, namespace, name)
        except KubekitError as error:
            self._say([error.what, error.cure])
            return
        plain = Console(io.StringIO(), io.StringIO(), colour="never", ascii_only=self._screen.ascii)
        self._say(page(found, plain, wide=True).splitlines())

    def _say(self, lines: Sequence[str]) -> None:
        text = tuple(harmless(line, coloured=False) for line in lines)
        self._view = msgspec.structs.replace(self._view, text=text)
        self._draw()

    def _lines(self) -> int:
        return shutil.get_terminal_size((80, 24)).lines

    def _draw(self) -> None:
        size = shutil.get_terminal_size((80, 24))
        self._shown = shown_rows(self._rows, self._view)
        if self._view.at >= len(self._shown):
            self._view = msgspec.structs.replace(self._view, at=max(0, len(self._shown) - 1))
        name = cluster_name(self._client)
        now = datetime.now(UTC)
        lines = top_lines(name, self._seen, self._use.current, self._shown, self._view, self._screen, size, now)
        draw(self._screen.out, lines)
