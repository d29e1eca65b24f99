"""The list of specs that do not pass only shrinks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import judging, reports
from tests.e2e.reports import Spec
from tests.e2e.suite import AREAS

PODS = "[sig-node] Pods should be updated [Conformance]"
QUOTA = "[sig-api-machinery] ResourceQuota should manage the lifecycle of a ResourceQuota [Conformance]"


def spec(name: str, passed: bool = True, message: str = "") -> Spec:
    return Spec(name, passed, 1.0, message)


def test_a_spec_that_fails_must_be_in_the_list() -> None:
    failed = [spec(PODS, passed=False, message="\n  timed out\n  after 5 minutes")]
    assert judging.findings(failed, {}) == [f"{PODS} does not pass: timed out"]
    assert judging.findings(failed, {PODS: "no reason"}) == []


def test_a_spec_that_passes_must_leave_the_list() -> None:
    assert judging.findings([spec(PODS)], {}) == []
    (line,) = judging.findings([spec(PODS)], {PODS: "no reason"})
    assert line == f"{PODS} passes: take it out of not_passing.yaml, which only shrinks"


def test_a_listed_spec_that_did_not_run_is_no_finding() -> None:
    assert judging.findings([spec(PODS)], {QUOTA: "slow"}) == []


def test_the_last_run_of_a_spec_counts() -> None:
    first = [spec(PODS, passed=False), spec(QUOTA)]
    assert judging.latest(first, [spec(PODS)]) == [spec(QUOTA), spec(PODS)]


def test_the_table_counts_by_area() -> None:
    rows = judging.table([spec(PODS), spec(QUOTA), spec(QUOTA + " again", passed=False)])
    assert [(row.area, row.passed, row.of) for row in rows] == [("api-machinery", 1, 2), ("node", 1, 1), ("all", 2, 3)]


def test_a_list_names_a_spec_once(tmp_path: Path) -> None:
    place = tmp_path / "list.yaml"
    place.write_text(f"- cause: a\n  specs: ['{PODS}']\n- cause: b\n  specs: ['{PODS}']\n")
    with pytest.raises(ValueError, match=r"names .*Pods should be updated.* twice"):
        judging.not_passing(place)


def test_the_list_names_conformance_specs_of_the_areas_that_are_run() -> None:
    for name in judging.not_passing():
        assert name.endswith("[Conformance]") and reports.area(name) in AREAS, name


def test_a_report_has_the_specs_that_were_run(tmp_path: Path) -> None:
    def entry(text: str, state: str, kind: str = "It", **more: Any) -> dict[str, Any]:
        return {
            "ContainerHierarchyTexts": ["[sig-node] Pods"],
            "LeafNodeType": kind,
            "LeafNodeText": text,
            "State": state,
            "RunTime": 2_500_000_000,
            **more,
        }

    suite = {
        "SpecReports": [
            entry("", "passed", "SynchronizedBeforeSuite", ContainerHierarchyTexts=None),
            entry("should wait", "skipped"),
            entry("should fail", "panicked", Failure={"Message": "Test Panicked"}),
            entry("should end", "interrupted"),
            entry("should be updated [Conformance]", "passed"),
        ]
    }
    place = tmp_path / "report.json"
    place.write_text(json.dumps([suite]))
    assert reports.read(place) == [
        Spec(PODS, True, 2.5),
        Spec("[sig-node] Pods should end", False, 2.5),
        Spec("[sig-node] Pods should fail", False, 2.5, "Test Panicked"),
    ]


def test_a_report_that_was_cut_off_is_not_read_as_one_without_failures(tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    place.write_text("[]\n")
    with pytest.raises(ValueError, match="has no suite"):
        reports.read(place)
