"""Formats the screen of `gpuplane top`: a line for each row, as many as the window has. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from gpuplane.cli.gpus_text import cells, letter_of
from gpuplane.cli.holders import WHOLE
from gpuplane.cli.status_parts import number_of
from gpuplane.cli.status_views import Overview
from gpuplane.cli.terminal import Console, age, clipped_line, harmless
from gpuplane.cli.top.rows import Matter, TopRow
from gpuplane.cli.top.view import RowKind, TopView
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.metering.use import IDLE_PART

NARROWEST: Final = 40
_BAR: Final = 10
_MODEL: Final = 5
_HEADS: Final = {RowKind.GPUS: "GPU", RowKind.NODES: "NODE", RowKind.PODS: "POD"}
_COLOURS: Final = {Matter.LOST: "bad", Matter.BROKEN: "bad", Matter.NOT_READY: "bad", Matter.NONE: "dim"}
_KEYS: Final = "g GPUs  n nodes  p pods  s sort  / filter  a all  e explain  q quit"


def top_lines(
    cluster: str,
    seen: Overview,
    use: MeasuredUse,
    rows: Sequence[TopRow],
    view: TopView,
    screen: Console,
    size: tuple[int, int],
    now: datetime,
) -> list[str]:
    """Return the lines of the screen, none longer than the window.

    Args:
        rows: the displayed ones, in their order.
        size: columns and lines of the window; a number of lines below 1 is as many as there are.
    """
    columns, lines = max(NARROWEST, size[0]), size[1]
    head = [_summary(cluster, seen, use, view), *_notes(use, screen)]
    if view.text:
        body = [harmless(line) for line in view.text]
        return _fit([*head, "", *body], f"any key goes back{'':4}q quit", columns, lines, screen)
    width = _name_width(rows, columns)
    title = _title(view, width)
    foot = _foot(seen, rows, view, screen, now)
    room = len(rows) if lines < 1 else max(1, lines - len(head) - 2 - len(foot))
    first = max(0, min(view.at - room // 2, len(rows) - room))
    listed = [_row(row, width, columns, view, screen, now) for row in rows[first : first + room]]
    if lines >= 1 and rows:
        at = view.at - first
        listed[at] = f"\x1b[1m{listed[at]}\x1b[0m" if screen.paint("", "bold") else f">{listed[at][1:]}"
    if not rows:
        listed = [_nothing(view)]
    return _fit([*head, "", screen.paint(title, "dim"), *listed], "\n".join(foot), columns, lines, screen)


def _fit(lines: Sequence[str], foot: str, columns: int, height: int, screen: Console) -> list[str]:
    last = [screen.paint(line, "dim") for line in foot.splitlines()]
    body = list(lines) if height < 1 else list(lines)[: max(1, height - len(last))]
    if height >= 1:
        body += [""] * (height - len(body) - len(last))
    # Names and messages are written by users of the cluster.
    return [clipped_line(harmless(line), columns) for line in (*body, *last)]


def _summary(cluster: str, seen: Overview, use: MeasuredUse, view: TopView) -> str:
    total = sum(node.total for node in seen.nodes)
    busy = [one.busy_percent for one in use.gpus.values() if one.busy_percent is not None]
    words = [
        f"{cluster} {number_of(total)} GPUs",
        f"held {round(100 * seen.held / total) if total else 0}%",
        f"busy {min(100, round(sum(busy) / seen.held))}%" if busy and seen.held else "busy -",
        f"waiting {seen.waiting}",
        f"sort:{view.sort}",
    ]
    if view.filter or view.typing:
        words.append(f"/{harmless(view.filter, coloured=False)}{'_' if view.typing else ''}")
    return "  ".join(words)


def _notes(use: MeasuredUse, screen: Console) -> list[str]:
    if use.why:
        return [f"{screen.glyph('warn')} use is not measured: {harmless(use.why, coloured=False)}"]
    if use.silent:
        return [f"{screen.glyph('warn')} {len(use.silent)} exporters did not answer, {use.silent[0]} first"]
    return []


def _name_width(rows: Sequence[TopRow], columns: int) -> int:
    return max(12, min(max((len(row.name) for row in rows), default=0), columns // 4))


def _title(view: TopView, width: int) -> str:
    return (
        f" {_HEADS[view.what]:{width}} {'MODEL':{_MODEL}} {'CORE':{_BAR + 6}} {'BUSY':>5} {'MEMORY':>9} {'W':>4}  "
        + ("HELD BY" if view.what is RowKind.GPUS else "ON" if view.what is RowKind.PODS else "ABOUT")
    )


def _row(row: TopRow, width: int, columns: int, view: TopView, screen: Console, now: datetime) -> str:
    name = (
        row.name if len(row.name) <= width else f"{row.name[: width // 2 - 1]}..{row.name[-(width - width // 2 - 1) :]}"
    )
    parts = [(letter_of(at), one.core / WHOLE) for at, one in enumerate(row.holders)]
    if view.what is not RowKind.GPUS:
        parts = [("A" if screen.ascii else screen.glyph("full"), min(1.0, row.held / 100))] if row.held else []
    held = "whole" if view.what is RowKind.GPUS and len(parts) == 1 and row.held >= WHOLE else f"{row.held:.0f}%"
    if view.what is not RowKind.GPUS:
        held = number_of(row.gpus)
    text = (
        f" {name:{width}} {row.model[:_MODEL]:{_MODEL}} {_bar(parts, screen)} {held:>5} {_busy(row):>5} "
        f"{_memory(row):>9} {_watts(row):>4}  "
    )
    rest = _about(row, view, now)
    left = columns - len(text)
    if len(rest) > left:
        rest = rest[: max(0, left - 2)] + ".."
    return text + (screen.paint(rest, _COLOURS.get(row.matter, "warn")) if row.matter is not Matter.NONE else rest)


def _bar(parts: Sequence[tuple[str, float]], screen: Console) -> str:
    full = cells(parts, screen)
    # Of the bar of `status gpus`, every second cell.
    return full[::2][:_BAR]


def _busy(row: TopRow) -> str:
    if row.busy is None:
        return "-"
    loud = "!" if row.matter is Matter.IDLE or (row.held and row.busy < 100 * IDLE_PART) else ""
    return f"{row.busy:.0f}%{loud}"


def _memory(row: TopRow) -> str:
    if row.memory_mib is None:
        return "-"
    used = f"{row.memory_mib / 1024:.0f}"
    return f"{used}/{row.memory_total_mib / 1024:.0f}G" if row.memory_total_mib else f"{used}G"


def _watts(row: TopRow) -> str:
    return "-" if row.power_watts is None else f"{row.power_watts:.0f}"


def _about(row: TopRow, view: TopView, now: datetime) -> str:
    words = [harmless(row.about, coloured=False).replace("\n", " ")] if row.about else []
    if row.since:
        words.append(age(row.since, now))
    if view.what is RowKind.PODS:
        words += [one.pod for one in row.holders]
    else:
        words += [f"{one.pod.partition('/')[2]} {one.holds}" for one in row.holders]
    return "  ".join(words)


def _foot(seen: Overview, rows: Sequence[TopRow], view: TopView, screen: Console, now: datetime) -> list[str]:
    total = sum(len(node.gpus) for node in seen.nodes)
    words = []
    if view.what is RowKind.GPUS and len(rows) < total:
        reason = "do not match" if view.filter else f"are healthy and hidden; {_to_list_all(view)}"
        words.append(f"{total - len(rows)} GPUs {reason}")
    if seen.waiting_pods:
        first = seen.waiting_pods[0]
        words.append(f"{first.pod} waits {age(first.since, now)}: {_to_explain(first.pod, view)}")
    if not view.has_keys:  # a command has a line of its own, so that it is whole
        return [*words, _KEYS]
    return ["   ".join(words), _KEYS]


def _to_list_all(view: TopView) -> str:
    return f"{'a' if view.has_keys else '--all'} lists all"


def _to_explain(pod: str, view: TopView) -> str:
    namespace, _, name = pod.partition("/")
    return "e" if view.has_keys else f"gpuplane explain {name} -n {namespace}"


def _nothing(view: TopView) -> str:
    if view.filter:
        return " nothing matches the filter"
    if view.what is RowKind.GPUS:
        return f" no GPU needs you; {_to_list_all(view)}"
    return " nothing holds or waits for GPUs"
