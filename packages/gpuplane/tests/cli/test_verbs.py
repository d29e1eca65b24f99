"""Verbs that other packages add to the command line."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from gpuplane.cli import verbs

POINTS = """\
[console_scripts]
other = other.main:main

[gpuplane.verbs]
other = other_verbs:VERBS
lab=overridden:VERBS

[something.else]
more = other_verbs:MORE
"""


def test_the_packages_that_pythons_own_library_finds() -> None:
    assert verbs._entry_points() == {entry.name: entry.value for entry in entry_points(group=verbs.GROUP)} != {}


def test_the_group_of_a_package_and_the_first_on_the_path_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other-1.0.dist-info").mkdir()
    (tmp_path / "other-1.0.dist-info/entry_points.txt").write_text(POINTS)
    (tmp_path / "plain-1.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", ["/nonexistent", str(tmp_path)])
    found = verbs._entry_points()
    assert found == {"other": "other_verbs:VERBS", "lab": "overridden:VERBS"}
    assert found == {entry.name: entry.value for entry in entry_points(group=verbs.GROUP)}
