"""Measured values with their limits; the report of a run as JSON and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

SCHEMA: Final = 1


class Finding(NamedTuple):
    """A figure. `least` and `most` are its bounds in `unit`; without any it is a fact."""

    part: str
    name: str
    value: float | str
    unit: str = ""
    least: float | None = None
    most: float | None = None

    @property
    def holds(self) -> bool:
        """Return whether the figure is within its bounds."""
        if isinstance(self.value, str):
            return True
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    @property
    def bounds(self) -> str:
        if self.least is not None and self.most is not None:
            return f"{self.least:g} to {self.most:g}"
        return f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}" if self.most else ""

    def line(self) -> str:
        """The figure for a terminal of 80 columns."""
        value = self.value if isinstance(self.value, str) else f"{self.value:.2f} {self.unit}".rstrip()
        mark = "✗" if not self.holds else "✓" if self.bounds else " "
        return f" {mark} {self.name:<38} {value:>16}  {self.bounds}".rstrip()


class Trouble(NamedTuple):
    """A part that did not come to its end, or cannot be done on this machine."""

    part: str
    what: str
    skipped: bool


class Report(NamedTuple):
    """All of a run."""

    machine: dict[str, str]
    findings: Sequence[Finding]
    troubles: Sequence[Trouble]

    @property
    def passed(self) -> bool:
        """Return whether every figure holds, and every part that the machine can do came to its end."""
        return all(one.holds for one in self.findings) and all(one.skipped for one in self.troubles)

    def as_json(self) -> str:
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "passed": self.passed,
            "machine": self.machine,
            "findings": [one._asdict() | {"holds": one.holds} for one in self.findings],
            "troubles": [one._asdict() for one in self.troubles],
        }
        return json.dumps(document, indent=2) + "\n"

    def as_markdown(self) -> str:
        lines = [f"# {self.machine.get('model', 'GPU')}, driver {self.machine.get('driver', 'unknown')}", ""]
        lines += [f"- {name}: {value}" for name, value in self.machine.items()]
        lines += ["", "| part | figure | value | bounds | holds |", "|---|---|---|---|---|"]
        for one in self.findings:
            value = one.value if isinstance(one.value, str) else f"{one.value:.3g} {one.unit}".rstrip()
            verdict = "" if not one.bounds else "yes" if one.holds else "**no**"
            lines.append(f"| {one.part} | {one.name} | {value} | {one.bounds} | {verdict} |")
        if self.troubles:
            lines += ["", "Not measured:", ""]
            lines += [f"- {one.part}: {one.what}{'' if one.skipped else ' (**failed**)'}" for one in self.troubles]
        return "\n".join(lines) + "\n"
