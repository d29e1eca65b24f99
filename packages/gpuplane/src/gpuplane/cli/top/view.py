"""The choices of a user of `gpuplane top`, and how each key changes them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final

import msgspec

from gpuplane.cli.top.rows import WORDS, Matter, TopRow


class RowKind(Enum):
    """The kind of the rows."""

    GPUS = "gpus"
    NODES = "nodes"
    PODS = "pods"


class KeyAction(Enum):
    """A demand of a key besides another view."""

    NONE = ""
    QUIT = "quit"
    EXPLAIN = "explain"


SORTS: Final[dict[str, Callable[[TopRow], Any]]] = {
    "matters": lambda row: (row.matter, -row.idle_seconds),
    "busy": lambda row: -1.0 if row.busy is None else row.busy,
    "memory": lambda row: -(row.memory_mib or 0.0),
    "held": lambda row: -row.held,
    "name": lambda row: (),
}
"""Name of an order -> its key; rows that are equal by it stay in the order of their names."""
LONGEST_FILTER: Final = 60


class TopView(msgspec.Struct, frozen=True):
    """Args:
    at: number of the chosen row.
    text: lines that cover the rows, as an explanation; empty for none.
    typing: letters go into the filter.
    has_keys: what can be done next is named by its key, else by its command.
    """

    what: RowKind = RowKind.GPUS
    sort: str = "matters"
    filter: str = ""
    typing: bool = False
    all: bool = False
    has_keys: bool = True
    at: int = 0
    text: tuple[str, ...] = ()


def shown_rows(rows: Sequence[TopRow], view: TopView) -> list[TopRow]:
    """Return the rows that pass the filter, in order; healthy GPUs only where all are wanted, or one filters."""
    words = view.filter.lower().split()
    found = [row for row in rows if all(word in searched(row) for word in words)] if words else list(rows)
    if not (view.all or words) and view.sort == "matters" and view.what is RowKind.GPUS:
        found = [row for row in found if row.matter is not Matter.NONE]
    return sorted(found, key=SORTS[view.sort])


def searched(row: TopRow) -> str:
    """Return the text that a filter looks into: name, model, state and holders."""
    return " ".join((row.name, row.model, WORDS[row.matter], *(one.pod for one in row.holders))).lower()


def pressed(view: TopView, key: str, rows: Sequence[TopRow], page: int) -> tuple[TopView, KeyAction]:
    """Return the view after a key, and what it asks for.

    Args:
        key: a character, or the name of a key: up, down, left, right, pageup, pagedown, home, end, enter, escape,
            backspace.
        rows: the displayed ones.
        page: how many rows the window has.
    """
    change = msgspec.structs.replace
    if key in ("ctrl-c", "ctrl-d"):
        return view, KeyAction.QUIT
    if view.text:
        return (view, KeyAction.QUIT) if key == "q" else (change(view, text=()), KeyAction.NONE)
    if view.typing:
        return _typed(view, key), KeyAction.NONE
    steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page}
    ends = {"home": 0, "end": len(rows) - 1}
    if key in steps or key in ends:
        at = ends.get(key, view.at + steps.get(key, 0))
        return change(view, at=max(0, min(len(rows) - 1, at))), KeyAction.NONE
    kinds = {"g": RowKind.GPUS, "n": RowKind.NODES, "p": RowKind.PODS}
    if key in kinds:
        return change(view, what=kinds[key], at=0), KeyAction.NONE
    if key in ("s", "S"):
        names = list(SORTS)
        at = names.index(view.sort) + (1 if key == "s" else -1)
        return change(view, sort=names[at % len(names)], at=0), KeyAction.NONE
    if key == "enter" and view.what is RowKind.NODES and view.at < len(rows):
        return change(view, what=RowKind.GPUS, filter=f"{rows[view.at].name}/", at=0), KeyAction.NONE
    simple = {
        "q": (view, KeyAction.QUIT),
        "e": (view, KeyAction.EXPLAIN),
        "enter": (view, KeyAction.EXPLAIN),
        "/": (change(view, typing=True), KeyAction.NONE),
        "a": (change(view, all=not view.all, at=0), KeyAction.NONE),
        "escape": (change(view, filter="", at=0), KeyAction.NONE),
    }
    return simple.get(key, (view, KeyAction.NONE))


def _typed(view: TopView, key: str) -> TopView:
    change = msgspec.structs.replace
    if key == "enter":
        return change(view, typing=False)
    if key == "escape":
        return change(view, typing=False, filter="", at=0)
    if key == "backspace":
        return change(view, filter=view.filter[:-1], at=0)
    if len(key) == 1 and key.isprintable() and len(view.filter) < LONGEST_FILTER:
        return change(view, filter=view.filter + key, at=0)
    return view


def explained_pod(view: TopView, rows: Sequence[TopRow], waiting: Sequence[str]) -> str:
    """Return the pod to explain: the chosen one, else the first on the chosen GPU, else the one that waits longest."""
    chosen = rows[view.at] if view.at < len(rows) else None
    if view.what is RowKind.PODS and chosen is not None:
        return chosen.name
    if view.what is RowKind.GPUS and waiting and view.at == 0:
        return waiting[0]
    if view.what is RowKind.GPUS and chosen is not None and chosen.holders:
        return chosen.holders[0].pod
    return waiting[0] if waiting else ""
