"""`make bench`: each benchmark belongs to an area, and the table of an area has its figures with goal and peer."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HELPERS = {"run", "figures", "shared_gpu", "clusters"}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    monkeypatch.setenv("GPUPLANE_FIGURES", str(tmp_path / "figures"))
    return runpy.run_path(str(BENCHMARKS / "figures.py"))


def bench(*names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "run.py"), *names], capture_output=True, text=True, check=False
    )


def test_each_benchmark_is_of_one_area(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    areas = runpy.run_path(str(BENCHMARKS / "run.py"))["AREAS"]
    listed = [name for programs in areas.values() for name in programs]
    assert sorted(listed) == sorted(path.stem for path in BENCHMARKS.glob("*.py") if path.stem not in HELPERS)


def test_a_table_has_figures_with_goal_and_peer(
    figures: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures["section"]("embedded: 10 pods")
    figures["show"]("bound", 1234.5, "/s", least=1000.0, peer="60 | theirs")
    figures["show"]("  slow", 6.0, "ms", goal=5.0)
    figures["show"]("known", 3.0, "s")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "embedded: 10 pods"
    assert [line.split("goal")[0].endswith("! ") for line in lines[2:]] == [False, True, False]
    assert "goal at least 1000 /s" in lines[2] and lines[2].endswith("60 | theirs")
    records = [figures["json"].loads(line) for line in (tmp_path / "figures").read_text().splitlines()]
    assert figures["table"](records).splitlines() == [
        "| | figure | goal | peer |",
        "|---|---|---|---|",
        "| **embedded: 10 pods** | | | |",
        "| bound | 1,234.50 /s | at least 1000 /s | 60 \\| theirs |",
        "| slow | 6.00 ms | **missed: 5 ms** |  |",
        "| known | 3.00 s |  |  |",
    ]


def test_one_benchmark_ends_with_the_table_of_its_area() -> None:
    done = bench("decide")
    assert done.returncode == 0, done.stderr
    _, _, table = done.stdout.partition("\n## nodes\n")
    assert len(table.splitlines()) > 3 and table.splitlines()[1] == "| | figure | goal | peer |"


def test_a_name_that_is_no_benchmark_is_refused() -> None:
    done = bench("decide", "nothing")
    assert done.returncode == 2
    assert "no area and no benchmark nothing; there are scheduler (packing," in done.stderr
