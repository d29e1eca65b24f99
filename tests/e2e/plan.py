"""Decide which specs run next, and how many of them at a time. Pure: the attempts so far are all that it knows.

So a measurement goes on where it was broken off. A spec gets a second attempt where it failed or was cut off, a third
one never.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from tests.e2e.reports import Outcome

# Specs that take more than half a minute where they pass: they wait for the clock.
LONG: Final = re.compile(
    r"\[Slow\]"
    r"|CronJob should (replace jobs|schedule multiple jobs)"
    r"|CustomResourceDefinition Watch"
    r"|CustomResourceFieldSelectors"
    r"|Probing container should (\*not\*|have monotonically increasing)"
    r"|issue 500 podspec updates"
)
ALONE: Final = re.compile(r"\[(Serial|Disruptive)\]")
PROCESSES: Final = 8
PIECE: Final = 64
# A spec that was chosen as often, and never begun, is given up.
TURNS: Final = 3
_PATIENCE_S: Final = 900.0
_AGAIN: Final = 4


class Kind(enum.Enum):
    """A spec's demand on the others: none, time, or that none of them runs."""

    QUICK = "specs"
    LONG = "long specs"
    ALONE = "specs that run alone"


class Batch(msgspec.Struct, frozen=True):
    """Specs that one run of the suite gets. `seconds` bounds the run; a spec that it cuts off has not passed."""

    title: str
    names: tuple[str, ...]
    processes: int
    seconds: float


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules by which specs are measured.

    Args:
        processes: specs that run at a time.
        piece: the most specs of a batch; what a broken-off measurement loses.
        again: whether a spec that failed or was cut off gets a second attempt.
        listed_seconds: the time of the specs that are known not to pass, all together; they get one attempt.
    """

    processes: int = PROCESSES
    piece: int = PIECE
    again: bool = True
    listed_seconds: float = 600.0


def kind(name: str) -> Kind:
    return Kind.ALONE if ALONE.search(name) else Kind.LONG if LONG.search(name) else Kind.QUICK


def next_batch(
    names: Sequence[str], attempts: Mapping[str, Sequence[Outcome]], listed: Collection[str], rules: Rules
) -> Batch | None:
    """Return the specs that run next; None when the measurement is at its end.

    First attempts come first, then second ones: of specs that were cut off, which need time, then of specs that failed,
    one after the other. The listed ones are last: they take the longest and are known.
    """
    open_ones = [name for name in names if not _settled(attempts.get(name, ()), name in listed, rules)]
    first = [name for name in open_ones if name not in listed and not _begun(attempts.get(name, ()))]
    for wanted in Kind:
        if chosen := [name for name in first if kind(name) is wanted][: rules.piece]:
            processes = 1 if wanted is Kind.ALONE else rules.processes
            return Batch(wanted.value, tuple(chosen), processes, _seconds(wanted, len(chosen)))
    again = [name for name in open_ones if name not in listed]
    cut = [name for name in again if _begun(attempts[name])[-1] is Outcome.CUT_OFF]
    if together := [name for name in cut if kind(name) is not Kind.ALONE][: rules.processes]:
        return Batch("cut-off specs again", tuple(together), rules.processes, _PATIENCE_S)
    if again:
        return Batch("failed specs again, one by one", tuple(again[:_AGAIN]), 1, _PATIENCE_S)
    if known := [name for name in open_ones if name in listed]:
        return Batch("specs that do not pass", tuple(known), rules.processes, rules.listed_seconds)
    return None


def _settled(attempts: Sequence[Outcome], listed: bool, rules: Rules) -> bool:
    begun = _begun(attempts)
    if listed and attempts:
        return True
    if len(attempts) - len(begun) >= TURNS:
        return True
    if not begun:
        return False
    return begun[-1] in (Outcome.PASSED, Outcome.SKIPPED) or len(begun) > 1 or not rules.again


def _begun(attempts: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in attempts if outcome is not Outcome.NOT_BEGUN]


def _seconds(wanted: Kind, count: int) -> float:
    """Return the bound of a batch of first attempts: several times what it takes on two cores."""
    match wanted:
        case Kind.QUICK:
            return 240.0 + 2.0 * count
        case Kind.LONG:
            return _PATIENCE_S
        case Kind.ALONE:
            return 300.0 + 60.0 * count
