"""Compare what the suite reported with the list of specs that do not pass. The list only shrinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import yaml

from tests.e2e.reports import Spec

LIST: Final = Path(__file__).with_name("not_passing.yaml")


class Cause(msgspec.Struct, frozen=True):
    """Specs that do not pass for one reason."""

    cause: str
    specs: tuple[str, ...]


class Row(msgspec.Struct, frozen=True):
    """An area's line of the table."""

    area: str
    passed: int
    of: int


def not_passing(place: Path = LIST) -> dict[str, str]:
    """Return the list: name of a spec -> why it does not pass. Raises ValueError for a spec that stands there twice."""
    found: dict[str, str] = {}
    for cause in msgspec.convert(yaml.safe_load(place.read_text()) or [], list[Cause]):
        for name in cause.specs:
            if name in found:
                raise ValueError(f"{place.name} names {name!r} twice")
            found[name] = cause.cause
    return found


def findings(specs: Iterable[Spec], listed: Mapping[str, str]) -> list[str]:
    """Return what is wrong, a line for each spec: one that fails and is not in the list, or one that passes and is."""
    wrong = []
    for spec in specs:
        if spec.passed and spec.name in listed:
            wrong.append(f"{spec.name} passes: take it out of {LIST.name}, which only shrinks")
        elif not spec.passed and spec.name not in listed:
            wrong.append(f"{spec.name} does not pass: {first_line(spec.message)}")
    return wrong


def first_line(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), "no message")


def latest(*runs: Iterable[Spec]) -> list[Spec]:
    """Return each spec as it ended in the last run that had it, by name."""
    found = {spec.name: spec for run in runs for spec in run}
    return [found[name] for name in sorted(found)]


def table(specs: Iterable[Spec]) -> list[Row]:
    """Return how many specs pass, by area, and the line `all`."""
    specs = list(specs)
    of, passed = Counter(spec.area for spec in specs), Counter(spec.area for spec in specs if spec.passed)
    rows = [Row(area, passed[area], of[area]) for area in sorted(of)]
    return [*rows, Row("all", passed.total(), of.total())]
