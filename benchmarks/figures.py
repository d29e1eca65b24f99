"""One line for each figure: what, value, goal, peer. A goal that is missed is marked, never hidden."""

from __future__ import annotations


def show(what: str, value: float, unit: str, *, goal: float | None = None, peer: str = "") -> None:
    """Print a figure. `goal` is an upper bound in the same unit; `peer` what others need for the same."""
    verdict = "" if goal is None else ("  " if value <= goal else "! ") + f"goal {goal:g} {unit}".rstrip()
    print(f"{what:44} {value:>12,.2f} {unit:5} {verdict:22} {peer}".rstrip(), flush=True)
