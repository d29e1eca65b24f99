"""The answers of the checks: findings, and what could not be read.

Invariant: a check that could not read something is never healthy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gpuplane.cli.doctor.facts import DoctorFacts


class Severity(StrEnum):
    """The weight of a finding; both kinds end the command with exit code 1."""

    ERROR = "error"  # a part of gpuplane does not work
    WARNING = "warning"  # it works, and will not for long, or not for all


class DoctorFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of the installation. `fault` is a name that the check declares; `cure` a command, or what to do."""

    fault: str
    severity: Severity = Severity.ERROR
    what: str
    where: str
    cure: str


class Diagnosis(msgspec.Struct, frozen=True):
    """The decision of a check. `good` is the fact in a few words that stands for a healthy part."""

    good: str
    findings: tuple[DoctorFinding, ...] = ()


class UnreadSource(msgspec.Struct, frozen=True):
    """Something that the user may not read: the missing right, the API server's words, and the cure."""

    right: str
    why: str
    cure: str


class CheckState(StrEnum):
    """The verdict of one check."""

    HEALTHY = "healthy"
    FINDINGS = "findings"
    NOT_LOOKED = "could not look"


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """One check's answer for printing."""

    name: str
    state: CheckState
    good: str = ""
    findings: tuple[DoctorFinding, ...] = ()
    unread: tuple[UnreadSource, ...] = ()


class DoctorCheck(msgspec.Struct, frozen=True):
    """One check.

    Args:
        name: as `--check` takes it.
        about: what it proves, in a few words.
        sources: the fields of DoctorFacts that it needs.
        faults: what it may find, by name.
        decide: returns the diagnosis; pure.
    """

    name: str
    about: str
    sources: tuple[str, ...]
    faults: Mapping[str, str]
    decide: Callable[[DoctorFacts], Diagnosis]


def examine(check: DoctorCheck, facts: DoctorFacts, unread: Mapping[str, UnreadSource]) -> CheckReport:
    """Return the answer of one check. A check with a source that could not be read does not decide."""
    missing = tuple(unread[source] for source in check.sources if source in unread)
    if missing:
        return CheckReport(name=check.name, state=CheckState.NOT_LOOKED, unread=missing)
    found = check.decide(facts)
    assert {one.fault for one in found.findings} <= set(check.faults), check.name
    if found.findings:
        return CheckReport(name=check.name, state=CheckState.FINDINGS, findings=found.findings)
    return CheckReport(name=check.name, state=CheckState.HEALTHY, good=found.good)
