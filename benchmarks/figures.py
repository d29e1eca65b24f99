"""One line for each figure: what, value, goal, peer. A goal that is missed is marked, never hidden.

Where the environment names a file in GPUPLANE_FIGURES, `run.py` reads the figures from it and makes a table of them.
"""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import Any, NamedTuple

FILE = "GPUPLANE_FIGURES"


class Figure(NamedTuple):
    """`goal` is the most that the value may be, `least` the least, both in its unit; `peer` what others need."""

    what: str
    value: float
    unit: str
    goal: float | None = None
    least: float | None = None
    peer: str = ""

    @property
    def missed(self) -> bool:
        return (self.goal is not None and self.value > self.goal) or (
            self.least is not None and self.value < self.least
        )

    @property
    def wanted(self) -> str:
        """Return the goal in words; empty where there is none."""
        if self.goal is not None:
            return f"{self.goal:g} {self.unit}".rstrip()
        return "" if self.least is None else f"at least {self.least:g} {self.unit}".rstrip()


def show(
    what: str, value: float, unit: str, *, goal: float | None = None, least: float | None = None, peer: str = ""
) -> None:
    """Print a figure. `goal` is an upper and `least` a lower bound in the same unit; `peer` what others need."""
    figure = Figure(what, value, unit, goal, least, peer)
    verdict = ("! " if figure.missed else "  ") + f"goal {figure.wanted}" if figure.wanted else ""
    print(f"{what:44} {value:>12,.2f} {unit:5} {verdict:22} {peer}".rstrip(), flush=True)
    _record(figure._asdict())


def processor(pid: int) -> float:
    """Return the seconds of the processor that a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ended_processor() -> float:
    """Return the seconds of the processor that commands of this process have taken and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def section(title: str) -> None:
    """Print a heading of the figures that follow."""
    print(f"\n{title}", flush=True)
    _record({"title": title})


def table(records: list[dict[str, Any]]) -> str:
    """Return recorded figures as a table in Markdown, missed goals in bold."""
    lines = ["| | figure | goal | peer |", "|---|---|---|---|"]
    for record in records:
        if "title" in record:
            lines.append(f"| **{_cell(record['title'])}** | | | |")
            continue
        figure = Figure(**record)
        goal = f"**missed: {figure.wanted}**" if figure.missed else figure.wanted
        value = f"{figure.value:,.2f} {figure.unit}".rstrip()
        lines.append(f"| {_cell(figure.what)} | {value} | {goal} | {_cell(figure.peer)} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.strip().replace("|", "\\|")


def _record(record: dict[str, Any]) -> None:
    if path := os.environ.get(FILE):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
