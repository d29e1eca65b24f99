"""The documentation tells every decided difference."""

from __future__ import annotations

from pathlib import Path

from packages.tinykube.tests.conformance import differences

EXPECTED = Path(__file__).parent / "expected"
PAGE = Path(__file__).parents[4] / "docs" / "components" / "conformance.md"


def test_the_documentation_has_the_table():
    page = PAGE.read_text()
    for scenario, steps, why in differences.DECIDED:
        assert f"| {scenario} | {', '.join(steps)} | {why} |" in page


def test_what_is_not_mended_is_of_a_scenario_that_there_is():
    for scenario, steps in differences.unmended().items():
        assert steps, scenario
        assert (EXPECTED / f"{scenario}.yaml").exists(), scenario
