"""Outcomes of the suite's specs, read from ginkgo's report in JSON."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Final

import msgspec

SECOND_NS: Final = 1_000_000_000
# Ginkgo's message for a spec that ran when the suite's time was over; a spec that exceeds its own time is a
# failure.
_SUITE_ENDED: Final = "A suite timeout occurred"


class Outcome(enum.StrEnum):
    """The outcome of an attempt to run a spec.

    A spec that the end of the time cut off may pass where it has more time. A spec that was not begun was chosen, but
    the time was over before its turn came. A spec skips itself where the cluster lacks what it is about.
    """

    PASSED = "passed"
    FAILED = "failed"
    CUT_OFF = "cut off"
    SKIPPED = "skipped"
    NOT_BEGUN = "not begun"


class Spec(msgspec.Struct, frozen=True):
    """An attempt to run a spec. `message` is the first lines of a failure, empty for a spec that passed."""

    name: str
    outcome: Outcome
    seconds: float = 0.0
    message: str = ""

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.PASSED

    @property
    def area(self) -> str:
        return area(self.name)


class _Failure(msgspec.Struct, rename="pascal"):
    message: str = ""


class _Report(msgspec.Struct, rename="pascal"):
    state: str
    leaf_node_type: str
    leaf_node_text: str
    container_hierarchy_texts: tuple[str, ...] | None = None
    run_time: int = 0
    failure: _Failure | None = None


class _Suite(msgspec.Struct, rename="pascal"):
    spec_reports: tuple[_Report, ...] | None = None


def read(report: Path) -> list[Spec]:
    """Return the specs that were begun, by name. Specs that were not chosen are left out, and those not begun.

    Raises ValueError for a report without a suite: a busy machine may have had no time left to write it.
    """
    found = []
    suites = msgspec.json.decode(report.read_bytes(), type=list[_Suite])
    if not suites:
        raise ValueError(f"{report} has no suite: it was cut off before it was written")
    for suite in suites:
        for one in suite.spec_reports or ():
            message = one.failure.message if one.failure else ""
            outcome = _outcome(one.state, message)
            if one.leaf_node_type == "It" and outcome is not Outcome.NOT_BEGUN:
                name = " ".join((*(one.container_hierarchy_texts or ()), one.leaf_node_text))
                found.append(Spec(name, outcome, one.run_time / SECOND_NS, message))
    return sorted(found, key=lambda spec: spec.name)


def _outcome(state: str, message: str) -> Outcome:
    match state:
        case "passed":
            return Outcome.PASSED
        case "interrupted" | "aborted":
            return Outcome.CUT_OFF
        case "timedout" if message.startswith(_SUITE_ENDED):
            return Outcome.CUT_OFF
        case "skipped" if message:
            return Outcome.SKIPPED
        case "skipped" | "pending":
            return Outcome.NOT_BEGUN
        case _:
            return Outcome.FAILED


def area(name: str) -> str:
    """Return the area of a spec: `node` of `[sig-node] Pods should be updated [Conformance]`."""
    return name.partition("]")[0].removeprefix("[sig-")
