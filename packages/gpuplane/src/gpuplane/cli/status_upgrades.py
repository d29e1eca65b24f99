"""Formats driver upgrades for `gpuplane status`: waiting nodes with reason and since when; finished ones are counted
only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from gpuplane.api.upgrade import ACTIVE, UpgradeState
from gpuplane.cli.status_views import NodeView
from gpuplane.cli.terminal import Console, age

SHOWN = 10  # nodes; the rest are counted


def upgrades(nodes: Sequence[NodeView], screen: Console, now: datetime) -> list[str]:
    """The lines, none when every node runs the wanted driver or upgrades are switched off.

    Nodes on their way come one by one, then those that failed; what only waits for its turn is counted.
    """
    found = [node for node in nodes if node.upgrade is not None]
    states = Counter(node.upgrade.state for node in found if node.upgrade is not None)
    if not found or set(states) == {UpgradeState.DONE.value}:
        return []
    way = sum(states[state.value] for state in ACTIVE)
    parts = [f"{states[UpgradeState.DONE.value]} of {len(found)} nodes"]
    for number, word in (
        (way, "on the way"),
        (states[UpgradeState.REQUIRED.value], "waiting"),
        (states[UpgradeState.FAILED.value], "failed"),
    ):
        if number:
            parts.append(f"{number} {word}")
    lines = ["", f" Driver upgrade   {'   '.join(parts)}"]
    told = [node for node in found if _order(node)]
    first = sorted(told, key=lambda node: (-_order(node), node.name))[:SHOWN]
    for node in first:
        lines += _lines(node, screen, now)
    if len(told) > SHOWN:
        lines.append(f"   and {len(told) - SHOWN} more: gpuplane status -o json")
    return lines


def _order(node: NodeView) -> int:
    """Return a node's rank: 2 in progress, 1 failed or waiting for its own reason, 0 only counted."""
    view = node.upgrade
    if view is None or view.state == UpgradeState.DONE:
        return 0
    if view.state in ACTIVE:
        return 2
    return int(view.state == UpgradeState.FAILED or bool(view.why))


def _lines(node: NodeView, screen: Console, now: datetime) -> list[str]:
    """Return the node's line; the reason goes below it where both do not fit."""
    view = node.upgrade
    assert view is not None, "only nodes with an upgrade are listed"
    glyph = ("bad", "bad") if view.state == UpgradeState.FAILED else ("wait", "warn")
    mark = screen.paint(screen.glyph(glyph[0]), glyph[1])
    state = f"   {view.state:22}   {age(view.since, now):>4}"
    name = screen.elided(node.name, screen.width - len(state) - 3)
    fits = screen.limit is None or len(f" x {name}{state}   {view.why}") <= screen.limit
    line = f" {mark} {name}{state}"
    if fits:
        return [f"{line}   {view.why}".rstrip()]
    return [line.rstrip(), *(f"     {part}" for part in screen.wrapped(view.why, 5))]
