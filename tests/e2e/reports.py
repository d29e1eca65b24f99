"""What the suite reports: each spec with its outcome, from ginkgo's report in JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

PASSED: Final = "passed"
NOT_RUN: Final = ("skipped", "pending")
SECOND_NS: Final = 1_000_000_000


class Spec(msgspec.Struct, frozen=True):
    """A spec that was run. `message` is the first lines of a failure, empty for a spec that passed."""

    name: str
    passed: bool
    seconds: float
    message: str = ""

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
    """Return the specs that were run, by name. A spec that the end of the time cut off has not passed.

    Raises ValueError for a report without a suite: a busy machine may have had no time left to write it.
    """
    found = []
    suites = msgspec.json.decode(report.read_bytes(), type=list[_Suite])
    if not suites:
        raise ValueError(f"{report} has no suite: it was cut off before it was written")
    for suite in suites:
        for one in suite.spec_reports or ():
            if one.leaf_node_type == "It" and one.state not in NOT_RUN:
                name = " ".join((*(one.container_hierarchy_texts or ()), one.leaf_node_text))
                message = one.failure.message if one.failure else ""
                found.append(Spec(name, one.state == PASSED, one.run_time / SECOND_NS, message or ""))
    return sorted(found, key=lambda spec: spec.name)


def area(name: str) -> str:
    """Return the area of a spec: `node` of `[sig-node] Pods should be updated [Conformance]`."""
    return name.partition("]")[0].removeprefix("[sig-")
