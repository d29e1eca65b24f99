"""The list of specs that do not pass only shrinks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import judging, reports
from tests.e2e.forms import as_form
from tests.e2e.judging import Judged, Row
from tests.e2e.reports import Outcome, Spec
from tests.e2e.suite import AREAS

PODS = "[sig-node] Pods should be updated [Conformance]"
QUOTA = "[sig-api-machinery] ResourceQuota should manage the lifecycle of a ResourceQuota [Conformance]"


def judged(name: str, outcome: Outcome = Outcome.PASSED, message: str = "", attempts: int = 1) -> Judged:
    return Judged(name, outcome, attempts, 61.0, message)


def test_a_spec_that_fails_must_be_in_the_list() -> None:
    failed = [judged(PODS, Outcome.FAILED, "\n  timed out\n  after 5 minutes")]
    assert judging.findings(failed, {}) == [f"{PODS} does not pass: timed out"]
    assert judging.findings(failed, {PODS: "no reason"}) == []


@pytest.mark.parametrize(
    ("outcome", "what"),
    [
        (Outcome.CUT_OFF, "was cut off after 61 s"),
        (Outcome.NOT_BEGUN, "was not begun"),
        (Outcome.SKIPPED, "skipped itself: no message"),
    ],
)
def test_a_spec_without_a_verdict_has_not_passed(outcome: Outcome, what: str) -> None:
    assert judging.findings([judged(PODS, outcome)], {}) == [f"{PODS} {what}"]


def test_a_spec_that_passes_must_leave_the_list() -> None:
    assert judging.findings([judged(PODS)], {}) == []
    (line,) = judging.findings([judged(PODS)], {PODS: "no reason"})
    assert line == f"{PODS} passes: take it out of not_passing.yaml, which only shrinks"


def test_a_listed_spec_that_was_not_measured_is_no_finding() -> None:
    assert judging.findings([judged(PODS)], {QUOTA: "slow"}) == []


def test_the_last_attempt_that_was_begun_counts() -> None:
    attempts = [
        Spec(PODS, Outcome.FAILED, 9.0, "timed out"),
        Spec(PODS, Outcome.PASSED, 2.0),
        Spec(PODS, Outcome.NOT_BEGUN),
        Spec("[sig-node] Another", Outcome.PASSED),
    ]
    assert judging.judge([PODS, QUOTA], attempts) == [
        Judged(QUOTA, Outcome.NOT_BEGUN, 0),
        Judged(PODS, Outcome.PASSED, 2, 2.0),
    ]


SPECS = [
    judged(QUOTA, Outcome.CUT_OFF),
    judged(QUOTA + " again", Outcome.FAILED, "x" * 5000),
    judged(PODS, attempts=2),
    judged(PODS + " again"),
]


def test_the_table_counts_by_area() -> None:
    assert judging.table(SPECS) == [
        Row("api-machinery", 2, failed=1, cut_off=1),
        Row("node", 2, passed=2, second_try=1),
        Row("all", 4, passed=2, second_try=1, failed=1, cut_off=1),
    ]


def test_forms() -> None:
    document = json.loads(as_form("json", SPECS))
    assert document["areas"][0] == {
        "area": "api-machinery",
        "of": 2,
        "passed": 0,
        "secondTry": 0,
        "failed": 1,
        "cutOff": 1,
        "skipped": 0,
        "notBegun": 0,
    }
    assert document["specs"][0] == {"name": QUOTA, "outcome": "cut off", "attempts": 1, "seconds": 61.0, "message": ""}
    assert len(document["specs"][1]["message"]) == 1000
    text, markdown = (as_form(form, SPECS).splitlines() for form in ("text", "markdown"))
    assert " ".join(text[0].split()) == "area passed of at the second try failed cut off skipped not begun"
    assert len({len(line) for line in text}) == 1
    assert markdown[0].startswith("| area | passed | of |") and set(markdown[1]) == {"|", "-"}
    assert markdown[-1] == "| all | 2 | 4 | 1 | 1 | 1 | 0 | 0 |"
    assert len({line.count("|") for line in markdown}) == 1


def test_a_list_names_a_spec_once(tmp_path: Path) -> None:
    place = tmp_path / "list.yaml"
    place.write_text(f"- cause: a\n  specs: ['{PODS}']\n- cause: b\n  specs: ['{PODS}']\n")
    with pytest.raises(ValueError, match=r"names .*Pods should be updated.* twice"):
        judging.not_passing(place)


def test_the_list_names_conformance_specs_of_the_areas_that_are_run() -> None:
    for name in judging.not_passing():
        assert name.endswith("[Conformance]") and reports.area(name) in AREAS, name


def test_a_report_has_the_specs_that_were_begun(tmp_path: Path) -> None:
    def entry(text: str, state: str, message: str = "", kind: str = "It", **more: Any) -> dict[str, Any]:
        return {
            "ContainerHierarchyTexts": ["[sig-node] Pods"],
            "LeafNodeType": kind,
            "LeafNodeText": text,
            "State": state,
            "RunTime": 2_500_000_000,
            **({"Failure": {"Message": message}} if message else {}),
            **more,
        }

    suite = {
        "SpecReports": [
            entry("", "passed", kind="SynchronizedBeforeSuite", ContainerHierarchyTexts=None),
            entry("should wait", "skipped"),
            entry("should be elsewhere", "skipped", "needs three nodes"),
            entry("should fail", "panicked", "Test Panicked"),
            entry("should take long", "timedout", "A suite timeout occurred"),
            entry("should be in time", "timedout", "A node timeout occurred"),
            entry("should end", "interrupted"),
            entry("should be updated [Conformance]", "passed"),
        ]
    }
    place = tmp_path / "report.json"
    place.write_text(json.dumps([suite]))
    assert reports.read(place) == [
        Spec("[sig-node] Pods should be elsewhere", Outcome.SKIPPED, 2.5, "needs three nodes"),
        Spec("[sig-node] Pods should be in time", Outcome.FAILED, 2.5, "A node timeout occurred"),
        Spec(PODS, Outcome.PASSED, 2.5),
        Spec("[sig-node] Pods should end", Outcome.CUT_OFF, 2.5),
        Spec("[sig-node] Pods should fail", Outcome.FAILED, 2.5, "Test Panicked"),
        Spec("[sig-node] Pods should take long", Outcome.CUT_OFF, 2.5, "A suite timeout occurred"),
    ]


def test_a_report_that_was_cut_off_is_not_read_as_one_without_failures(tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    place.write_text("[]\n")
    with pytest.raises(ValueError, match="has no suite"):
        reports.read(place)
