"""`gpuplane share top`: this machine's GPUs with their shares, live on a terminal, once elsewhere."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from gpuplane import names
from gpuplane.cli.forms import as_document
from gpuplane.cli.host_root import require_root
from gpuplane.cli.share_place import SharePlace, find_place, node_place, user_base
from gpuplane.cli.share_text import HISTORY, top_page
from gpuplane.cli.terminal import Console, harmless
from gpuplane.cli.verbs import find_simulator
from gpuplane.hardware import GPUSource
from gpuplane.limits import GpuView, Observer, ShareStore, views
from gpuplane.limits.decide import EscapeState, decide
from gpuplane.limits.facts import Observation
from kubekit.errors import UsageError


def top(options: Namespace, screen: Console) -> int:
    """0 once it could look; Ctrl-C is how it ends on a terminal."""
    logging.getLogger("gpuplane").addHandler(logging.NullHandler())
    if not 0.1 <= options.interval <= 60:
        raise UsageError(f"{options.interval:g} seconds is no interval", where="--interval", cure="0.1 to 60")
    if options.host_root is not None:
        node = node_place(require_root(options.host_root))
        _look(node, (node.store,), options, screen)
        return 0
    own = ShareStore(user_base(os.environ, os.geteuid()))
    simulator = find_simulator()
    with own.lock():
        place = find_place(own, options.simulate, os.environ, simulator, existing=True)
    try:
        _look(place, (own, ShareStore(Path("/", names.LIMITS_DIR))), options, screen)
    finally:
        if simulator is not None:
            with own.lock():
                simulator.delete_unused(own)
    return 0


def _look(place: SharePlace, stores: tuple[ShareStore, ...], options: Namespace, screen: Console) -> None:
    with closing(place.open()) as gpus:
        looks = Looks(gpus, stores)
        live = screen.out.isatty() and options.output == "text" and not options.once
        if live or options.watch:
            with contextlib.suppress(KeyboardInterrupt):
                _stay(looks, options, screen, live=live)
        else:
            looks.look()
            time.sleep(options.interval)
            _show(looks.look(), looks, options, screen)


class Looks:
    """Looks at the shares of several stores on the same GPUs; each look has rates since the one before it."""

    def __init__(self, gpus: GPUSource, stores: tuple[ShareStore, ...]) -> None:
        self._gpus = gpus
        self._observers = [Observer(store, gpus) for store in stores]
        self._before: Observation | None = None
        self._state = EscapeState()
        self.host = socket.gethostname().partition(".")[0]
        self.history: dict[str, list[int]] = {}

    def look(self) -> tuple[GpuView, ...]:
        """All GPUs as they are now."""
        parts = [observer.observe() for observer in self._observers]
        seen = merged(parts)
        self._state, plan = decide(self._state, seen)
        samples = {sample.uuid: sample for sample in self._gpus.samples()}
        for uuid, sample in samples.items():
            busy = self.history.setdefault(uuid, [])
            busy.append(sample.gpu_percent or 0)
            del busy[:-HISTORY]
        found = views(self._gpus.inventory(), samples, self._before, seen, plan.escapes)
        self._before = seen
        return found


def merged(parts: list[Observation]) -> Observation:
    """Merge the observations of several stores; a process that one of them knows is not foreign to another."""
    processes: dict[tuple[str, int], Any] = {}
    for part in parts:
        for process in part.processes:
            old = processes.get((process.uuid, process.pid))
            if old is None or process.share:
                processes[process.uuid, process.pid] = process
    return Observation(
        at_ns=max(part.at_ns for part in parts),
        shares=tuple(share for part in parts for share in part.shares),
        processes=tuple(processes.values()),
    )


def _stay(looks: Looks, options: Namespace, screen: Console, *, live: bool) -> None:
    if not live:
        for view in _every(looks, options.interval):
            _show(view, looks, options, screen)
            screen.out.flush()
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(file=screen.out, highlight=False), auto_refresh=False, screen=True) as page:
        for view in _every(looks, options.interval):
            text = harmless(top_page(looks.host, view, looks.history, screen))
            page.update(Text.from_ansi(text, no_wrap=True, overflow="ellipsis"), refresh=True)


def _every(looks: Looks, interval: float) -> Iterator[tuple[GpuView, ...]]:
    due = time.monotonic()
    while True:
        yield looks.look()
        due = max(due + interval, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


def _show(view: tuple[GpuView, ...], looks: Looks, options: Namespace, screen: Console) -> None:
    if options.output != "text":
        data = {"host": looks.host, "gpus": msgspec.to_builtins(view)}
        between = "---\n" if options.output == "yaml" and options.watch else ""
        screen.print(between + as_document("ShareTop", data, options.output))
    else:
        screen.print(top_page(looks.host, view, {}, screen))
