"""The table of the node pools on the page of `gpuplane status`."""

from __future__ import annotations

from collections.abc import Sequence

from gpuplane.cli.status_parts import said
from gpuplane.cli.status_views import PoolView
from gpuplane.cli.terminal import Console

_NUMBERS = range(1, 4)  # columns of numbers


def pool_lines(pools: Sequence[PoolView], screen: Console) -> list[str]:
    """Return a table with a line for each pool, and an entry for each one that buys nothing or whose launches fail."""
    if not pools:
        return []
    rows = [("POOL", "NODES", "JOINING", "ENDING", "TYPES", "LIMITS")]
    for pool in pools:
        types = ", ".join(f"{number} {screen.glyph('times')} {name}" for name, number in pool.types.items())
        limits = ", ".join(f"{limit.resource} {limit.used} of {limit.limit}" for limit in pool.limits)
        rows.append((pool.name, str(pool.nodes), str(pool.joining), str(pool.ending), types, limits))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [""]
    for row in rows:
        cells = [f"{cell:{'>' if at in _NUMBERS else ''}{widths[at]}}" for at, cell in enumerate(row)]
        lines.append((" " + "   ".join(cells)).rstrip())
    for pool in pools:
        if pool.trouble:
            mark = screen.paint(screen.glyph("warn"), "warn")
            cure = pool.cure or "kubectl describe nodeclaims; kubectl get events lists what the cloud answered"
            lines += ["", f" {mark} pool {pool.name} gets no node", *said(screen, what=pool.trouble, cure=cure)]
    return lines
