"""Compare what the suite reported with the list of specs that do not pass. The list only shrinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import yaml

from tests.e2e.reports import Outcome, Spec, area

LIST: Final = Path(__file__).with_name("not_passing.yaml")


class Cause(msgspec.Struct, frozen=True):
    """Specs that do not pass for one reason."""

    cause: str
    specs: tuple[str, ...]


class Judged(msgspec.Struct, frozen=True):
    """A spec as its last attempt ended. `attempts` is how often it was begun."""

    name: str
    outcome: Outcome
    attempts: int
    seconds: float = 0.0
    message: str = ""


class Row(msgspec.Struct, frozen=True, rename="camel"):
    """An area's line of the table. `second_try` counts those of `passed` that failed first."""

    area: str
    of: int
    passed: int = 0
    second_try: int = 0
    failed: int = 0
    cut_off: int = 0
    skipped: int = 0
    not_begun: int = 0


def not_passing(place: Path = LIST) -> dict[str, str]:
    """Return the list: name of a spec -> why it does not pass. Raises ValueError for a spec that stands there twice."""
    found: dict[str, str] = {}
    for cause in msgspec.convert(yaml.safe_load(place.read_text()) or [], list[Cause]):
        for name in cause.specs:
            if name in found:
                raise ValueError(f"{place.name} names {name!r} twice")
            found[name] = cause.cause
    return found


def judge(names: Iterable[str], attempts: Iterable[Spec]) -> list[Judged]:
    """Return each of the specs as its last attempt ended, by name; without one it was not begun."""
    begun: dict[str, list[Spec]] = {name: [] for name in names}
    for spec in attempts:
        if spec.name in begun and spec.outcome is not Outcome.NOT_BEGUN:
            begun[spec.name].append(spec)
    judged = []
    for name, all_of_it in sorted(begun.items()):
        if all_of_it:
            last = all_of_it[-1]
            judged.append(Judged(name, last.outcome, len(all_of_it), last.seconds, last.message))
        else:
            judged.append(Judged(name, Outcome.NOT_BEGUN, 0))
    return judged


def findings(specs: Iterable[Judged], listed: Mapping[str, str]) -> list[str]:
    """Return what is wrong, a line for each spec: one that does not pass and is not in the list, or one that passes and
    is."""
    wrong = []
    for spec in specs:
        passed = spec.outcome is Outcome.PASSED
        if passed and spec.name in listed:
            wrong.append(f"{spec.name} passes: take it out of {LIST.name}, which only shrinks")
        elif not passed and spec.name not in listed:
            wrong.append(f"{spec.name} {_what_happened(spec)}")
    return wrong


def _what_happened(spec: Judged) -> str:
    match spec.outcome:
        case Outcome.CUT_OFF:
            return f"was cut off after {spec.seconds:.0f} s"
        case Outcome.NOT_BEGUN:
            return "was not begun"
        case Outcome.SKIPPED:
            return f"skipped itself: {first_line(spec.message)}"
        case _:
            return f"does not pass: {first_line(spec.message)}"


def first_line(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), "no message")


def table(specs: Iterable[Judged]) -> list[Row]:
    """Return the counts by area, and the line `all`."""
    specs = list(specs)
    areas = sorted({area(spec.name) for spec in specs})
    return [*(_row(name, [spec for spec in specs if area(spec.name) == name]) for name in areas), _row("all", specs)]


def _row(name: str, specs: Sequence[Judged]) -> Row:
    counts = Counter(spec.outcome for spec in specs)
    return Row(
        name,
        len(specs),
        passed=counts[Outcome.PASSED],
        second_try=sum(spec.attempts > 1 for spec in specs if spec.outcome is Outcome.PASSED),
        failed=counts[Outcome.FAILED],
        cut_off=counts[Outcome.CUT_OFF],
        skipped=counts[Outcome.SKIPPED],
        not_begun=counts[Outcome.NOT_BEGUN],
    )
