"""The harness of `make test-gpu`, on a simulated GPU: what a person with a GPU starts runs to its end and reports."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu import memory
from tests.gpu.__main__ import NO_GPU, main, no_gpu
from tests.gpu.findings import Finding, Report, Trouble
from tests.support.compiler import compiler


@pytest.fixture(autouse=True)
def own_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_parts_and_memory_hold_and_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--simulate", "t4", "--quick", "--only", "parts,memory", "--report", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["passed"], report["machine"]["model"], report["machine"]["simulated"]) == (True, "Tesla T4", "t4")
    names = {one["name"] for one in report["findings"]}
    assert {"vectorAdd passed", "DCGM_FI_DEV_GPU_UTIL is there", "cuMemCreate, its refusal"} <= names
    assert "| memory | cuMemAlloc |" in (tmp_path / "report.md").read_text()
    assert "0 missed, 0 parts failed" in capsys.readouterr().out


def test_killed_tenants_leave_their_share_to_the_next(tmp_path: Path) -> None:
    """Three shares of 40 percent fit next to a share of 50 only if each ends before the next begins."""
    main(["--simulate", "t4", "--quick", "--only", "kills", "--report", str(tmp_path)])
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["troubles"] == []
    assert [one["name"] for one in report["findings"]] == ["longest wait beside 3 SIGKILLs", "time taken"]


@pytest.fixture
def nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that plays NCCL, where NCCL's wheel has its own."""
    folder = tmp_path / "packages/nvidia/nccl"
    (folder / "lib").mkdir(parents=True)
    (folder / "__init__.py").touch()
    source = Path(__file__).with_name("fake_nccl.c")
    subprocess.run(
        [*compiler(), "-O1", "-shared", "-fPIC", "-o", str(folder / "lib/libnccl.so.2"), str(source), "-ldl"],
        check=True,
    )
    monkeypatch.setenv("PYTHONPATH", str(folder.parents[1]))
    monkeypatch.syspath_prepend(str(folder.parents[1]))


@pytest.mark.usefixtures("nccl")
def test_two_shares_reduce_together(tmp_path: Path) -> None:
    assert main(["--simulate", "t4", "--quick", "--only", "nccl", "--report", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    right = [one["name"] for one in report["findings"] if one["name"].endswith("right") and one["value"] == 1]
    assert right == ["no share: the sum is right", "shares of 50%: the sum is right"]


@pytest.mark.usefixtures("nccl")
def test_where_nccl_takes_no_second_program_on_a_gpu_it_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NCCL_REFUSES", "1")
    assert main(["--simulate", "t4", "--quick", "--only", "nccl", "--report", str(tmp_path)]) == 0
    [trouble] = json.loads((tmp_path / "report.json").read_text())["troubles"]
    assert trouble == {"part": "nccl", "what": "NCCL takes one program for each GPU, and there is 1", "skipped": True}


def test_without_nccl_it_is_skipped_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.gpu.collectives.library", lambda: None)
    assert main(["--simulate", "t4", "--quick", "--only", "nccl", "--report", str(tmp_path)]) == 0
    [trouble] = json.loads((tmp_path / "report.json").read_text())["troubles"]
    assert "pip install nvidia-nccl-cu12" in trouble["what"]


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if not no_gpu():
        pytest.skip("this machine has a GPU: make test-gpu")
    assert main([]) == NO_GPU
    assert "cure: run it on a machine with a GPU" in capsys.readouterr().err


def test_a_part_that_breaks_leaves_the_others_and_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Iterator[Finding]:
        yield Finding("memory", "before", 1.0, "", 1)
        raise KeyError("held_mib")

    monkeypatch.setattr(memory, "paths", broken)
    assert main(["--simulate", "t4", "--quick", "--only", "memory,parts", "--report", str(tmp_path)]) == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert [(one["part"], one["skipped"]) for one in report["troubles"]] == [("memory", False)]
    assert {"before", "vectorAdd passed"} <= {one["name"] for one in report["findings"]}


def test_a_device_node_alone_is_no_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """NVIDIA's libcuda makes /dev/nvidiactl where root calls it without a GPU, so NVML decides."""
    monkeypatch.setattr(Path, "exists", lambda path: True)
    monkeypatch.setattr("tests.gpu.__main__.no_gpu", lambda: "NVML knows none")
    assert main([]) == NO_GPU
    assert "error: no GPU: NVML knows none" in capsys.readouterr().err


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "parts,fast"]) == 2
    assert "no part fast; there are parts, memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "least", "most", "holds"),
    [
        (30.0, 28, 32, True),
        (32.1, 28, 32, False),
        (27.9, 28, None, False),
        (0, None, 0, True),
        ("T4", None, None, True),
    ],
)
def test_a_figure_outside_its_bounds_fails_the_run(
    value: float | str, least: float | None, most: float | None, holds: bool
) -> None:
    report = Report({}, [Finding("part", "name", value, "%", least, most)], [])
    assert report.passed == holds
    assert ("**no**" in report.as_markdown()) == (not holds)


def test_what_a_machine_lacks_fails_nothing_and_what_breaks_does() -> None:
    assert Report({}, [], [Trouble("pytorch", "it is not installed", skipped=True)]).passed
    broken = Report({}, [], [Trouble("memory", "exit code 1", skipped=False)])
    assert not broken.passed
    assert "memory: exit code 1 (**failed**)" in broken.as_markdown()
