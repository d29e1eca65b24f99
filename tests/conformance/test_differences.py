"""The documentation tells every decided difference."""

from __future__ import annotations

from pathlib import Path

import differences

PAGE = Path(__file__).parents[2] / "docs" / "components" / "conformance.md"


def test_the_documentation_has_the_table():
    page = PAGE.read_text()
    for scenario, steps, why in differences.DECIDED:
        assert f"| {scenario} | {', '.join(steps)} | {why} |" in page
