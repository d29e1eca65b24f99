"""`gpuplane check` and `explain` as their users see them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuplane.api.codes import CODES
from gpuplane.cli.main import main

POLICY = """\
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata:
  name: cluster-policy
spec:
  driver:
    enable: false
    kernelModuleType: opn
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


def test_every_error_has_its_place_the_line_and_a_cure(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(policy), "--color", "never"]) == 1
    out = capsys.readouterr().out
    assert f"{policy}:7:5  GP110" in out
    assert "      7 |     enable: false\n        |     ^^^^^^\n        = cure: did you mean enabled?" in out
    assert f"{policy}:8:23  GP112" in out
    assert "2 errors in 1 file" in out
    assert main(["check", str(policy), "-v"]) == 1
    assert main(["check", str(policy.with_name("absent.yaml")), "-v"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_pods_that_can_never_run_are_found_in_their_workloads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: train}\nspec:\n  template:\n    spec:\n"
        "      containers:\n      - name: main\n        resources:\n          limits:\n"
        '            tencent.com/vcuda-core: "150"\n            nvidia.com/gpu: 1\n'
    )
    assert main(["check", str(path), "--color", "never"]) == 1
    out = capsys.readouterr().out
    assert f"{path}:11:37  GP201" in out
    assert "150 can never be met" in out
    assert f'        | {"":36}^^^^^\n        = cure: "100" or "200"' in out


@pytest.mark.parametrize("amount", ["9223372036854775807", "1e30"])
def test_more_than_any_machine_has_is_not_called_no_whole_number(
    amount: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pod.yaml"
    limits = f'{{tencent.com/vcuda-core: "{amount}", tencent.com/vcuda-memory: 1}}'
    path.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: main\n    image: i\n"
        f"    resources: {{limits: {limits}}}\n"
    )
    assert main(["check", str(path), "--color", "never"]) == 1
    out = capsys.readouterr().out
    assert "GP201" in out and f"{amount} is more than any node has" in out


def test_json_has_the_same_findings(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(policy), "-o", "json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["errors"] == 2
    assert [f["code"] for f in data["files"][0]["documents"][0]["findings"]] == ["GP110", "GP112"]


def test_a_good_file_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(POLICY.partition("  driver")[0].replace("spec:", "spec: {}"))
    assert main(["check", str(path)]) == 0
    assert "1 file without error" in capsys.readouterr().out


def test_a_file_that_cannot_be_read_ends_with_3(tmp_path: Path) -> None:
    assert main(["check", str(tmp_path / "none.yaml")]) == 3


def test_a_code_is_explained_and_a_wrong_one_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "gp110"]) == 0
    assert "unknown field" in capsys.readouterr().out
    assert main(["explain", "GP1111"]) == 1
    assert "did you mean GP1" in capsys.readouterr().err


def test_the_code_at_the_end_is_that_of_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A warning may come last: the code to read about is that of what has to be corrected."""
    wrong, warned = tmp_path / "a.yaml", tmp_path / "b.yaml"
    wrong.write_text("apiVersion: v1\nkind: pod\nmetadata: {name: p}\n")
    warned.write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, name: d}\n")
    assert main(["check", str(wrong), str(warned), "--color", "never"]) == 1
    out = capsys.readouterr().out
    assert "GP117" in out.partition("1 error in 2 files")[0]
    assert out.splitlines()[-1].endswith("gpuplane explain GP102")


@pytest.mark.parametrize("code", CODES)
def test_a_code_fits_the_window_and_is_whole_for_programs(
    code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["explain", code]) == 0
    narrow = capsys.readouterr().out
    assert max(map(len, narrow.partition("\nwrong:")[0].splitlines())) <= 80
    monkeypatch.delenv("COLUMNS")
    assert main(["explain", code]) == 0
    whole = capsys.readouterr().out
    assert whole.split() == narrow.split()
    assert CODES[code].text in whole
