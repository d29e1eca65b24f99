"""The page that `gpuplane simulate packing --html FILE` writes, read as a browser reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuplane.cli.main import main
from packages.gpuplane.tests.autoscaler.test_nodes_page import Page
from packages.gpuplane.tests.sharing.test_simulate_command import NODES, PODS, TRACE

HOSTILE = '<img src=x onerror="1">\x1b[31m\'&.csv'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of a packing and of a trace, in which the command runs."""
    for name, text in (("nodes.csv", NODES), ("pods.csv", PODS), ("trace.csv", TRACE)):
        (tmp_path / name).write_text(text)
    (tmp_path / "one.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,16000,65536,1,T4\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def packing(*more: str, pods: str = "pods.csv") -> list[str]:
    return ["simulate", "packing", "--nodes", "nodes.csv", "--pods", pods, *more]


def written(folder: Path, words: list[str]) -> Page:
    assert main([*words, "--html", "page.html"]) == 0
    text = (folder / "page.html").read_text()
    assert "url(" not in text and "@import" not in text and "\x1b" not in text
    page = Page(text)
    assert page.fetched == []
    return page


def test_ways_are_compared_in_curves_and_in_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = written(folder, packing("--compare", "tightest", "scheduler:spread", "-o", "json"))
    answer = json.loads(capsys.readouterr().out)
    assert "How full the GPUs are: 2 ways compared" in page.text
    # Two lines and the ideal one, how far both are behind it, and the power of both.
    assert len(page.lines) == 7 and all(len(points) > 5 for points in page.lines[:2])
    results, held, missed, power = page.tables
    assert [row[0] for row in results[1:]] == ["tightest", "spread, scheduler"]
    for row, run in zip(results[1:], answer["runs"], strict=True):
        allocated = run["allocated_percent"]
        rows = {head: "-" if (some := allocated[head[3:-1]]) is None else f"{some:.2f}%" for head in results[0][1:6]}
        assert row[1:6] == list(rows.values()) and next(iter(rows)) == "At 90%"
        assert row[6:8] == [f"{run['fragmentation_percent']:.2f}%", f"{run['placed']} of {run['pods']}"]
    assert held[0] == ["Arrived, percent of all GPUs", "tightest", "spread, scheduler", "all that arrived"]
    last, gap = held[-1], missed[-1]
    assert last[0] == gap[0]
    for way in (1, 2):
        watts = answer["runs"][way - 1]["model_watts_by_percent_held"]
        assert {row[0]: float(row[way]) for row in power[1:] if row[way] != "-"} == {
            f"{held}%": pytest.approx(some / 1000, abs=0.01) for held, some in watts.items() if some is not None
        }
        assert 100 - percent(last[way]) == pytest.approx(percent(gap[way]), abs=0.02)


def percent(text: str) -> float:
    return float(text.removesuffix("%"))


def test_the_page_says_what_was_run(folder: Path) -> None:
    page = written(folder, packing("--seed", "7", "--inflate", "1.2"))
    for words in (
        "gpuplane simulate packing --nodes nodes.csv --pods pods.csv --seed 7 --inflate 1.2 --html page.html",
        "nodes.csv: 5 nodes, 10 GPUs",
        "pods.csv: 20 pods",
        "which request 1.12 times the GPUs",
        "random, seed 7",
    ):
        assert words in page.text


def test_the_curves_of_a_trace_are_over_time(folder: Path) -> None:
    words = ["simulate", "packing", "--nodes", "one.csv", "--trace", "trace.csv", "--policy", "tightest"]
    page = written(folder, words)
    assert len(page.lines) == 2
    _, held, waiting = page.tables
    # One GPU: 60% of it are held for 150 of 200 seconds, and a pod of 60% waits from second 10 to second 100.
    means = [percent(row[1]) for row in held[1:]]
    assert held[0][0] == "Time since the first arrival, minutes"
    assert (max(means), means[-1]) == (60.0, 0.0)
    assert {row[1] for row in waiting[1:]} == {"0", "0.6"}
    assert "1 of 3" in page.text and "trace.csv: 3 pods, which leave" in page.text


def test_a_trace_without_time_or_without_waiting_has_a_note_in_place_of_curves(folder: Path) -> None:
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time\n"
    trace = ["simulate", "packing", "--nodes", "one.csv", "--trace", "t.csv"]
    (folder / "t.csv").write_text(f"{head}a,1,1,1,100,5\n")
    assert "No curve: all pods arrived in the same second" in written(folder, trace).text
    (folder / "t.csv").write_text(f"{head}a,1,1,1,100,5\nb,1,1,1,100,9\n")
    assert "No curve: no pod with GPUs waited" in written(folder, trace).text
    (folder / "t.csv").write_text(f"{head}a,1,1,0,0,5\n")
    none = packing("--policy", "spread", pods="t.csv")
    assert "No curve: no pod requested a GPU" in written(folder, none).text


def test_names_of_files_do_not_become_markup(folder: Path) -> None:
    (folder / HOSTILE).write_text(PODS)
    page = written(folder, packing(pods=HOSTILE))
    assert '<img src=x onerror="1">^[[31m\'&.csv: 20 pods' in page.text


@pytest.mark.parametrize(
    ("file", "code", "says"),
    [
        ("-", 2, "standard output has the answer of the command"),
        ("folder", 1, "it is a folder"),
        ("none/page.html", 1, "there is no folder none"),
    ],
)
@pytest.mark.parametrize("option", ["--html", "--placements"])
def test_a_file_that_cannot_be_written_is_refused_before_the_run(
    folder: Path, capsys: pytest.CaptureFixture[str], option: str, file: str, code: int, says: str
) -> None:
    (folder / "folder").mkdir()
    assert main(packing(option, file)) == code
    printed = capsys.readouterr()
    assert printed.out == "" and says in printed.err and f"{option} {file}" in printed.err
    assert "name a file that can be written" in printed.err


def test_a_run_that_fails_leaves_the_page_that_was_there(folder: Path) -> None:
    (folder / "page.html").write_text("before")
    assert main(packing("--html", "page.html", pods="nodes.csv")) == 1
    assert (folder / "page.html").read_text() == "before"
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []
