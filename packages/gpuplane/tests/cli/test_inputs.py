"""Files and standard input of the command line: bounded, and one error in words for what is no text."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from gpuplane.cli.main import main

NODE = "sn,cpu_milli,memory_mib,gpu,model\nn,1000,1000,1,T4\n"


class StandardInput:
    """The standard input of a process; `read` counts the bytes that were read."""

    def __init__(self, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        self.buffer = io.BytesIO(data)
        monkeypatch.setattr("sys.stdin", self)


class EndlessInput:
    """Standard input that never ends, as `cat /dev/zero |`."""

    def __init__(self) -> None:
        self.buffer = self
        self.taken = 0

    def read(self, size: int) -> bytes:
        assert 0 < size < 1 << 30, "without a limit the memory is full"
        self.taken += size
        return b"\0" * size


@pytest.mark.parametrize("words", [["check"], ["simulate", "packing", "--nodes", "nodes.csv", "--pods"]])
def test_a_pipe_is_refused_and_the_cure_names_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nodes.csv").write_text(NODE)
    os.mkfifo("pipe")
    assert main([*words, "pipe"]) == 3
    err = capsys.readouterr().err
    assert "cannot be read: it is a pipe" in err
    assert "give - in its place, which reads standard input" in err
    assert main([*words, "/dev/zero"]) == 3
    assert "it is a device" in capsys.readouterr().err


def test_standard_input_is_checked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    StandardInput(
        b"apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: a}\nspec: {drive: 1}\n", monkeypatch
    )
    assert main(["check", "-"]) == 1
    assert "-:4:8  GP110" in capsys.readouterr().out
    StandardInput(b"kind: \xff", monkeypatch)
    assert main(["check", "-"]) == 1
    assert "standard input:1:7" in capsys.readouterr().err


def test_standard_input_that_never_ends_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = EndlessInput()
    monkeypatch.setattr("sys.stdin", endless)
    assert main(["check", "-"]) == 3
    assert "is longer than 16 MiB" in capsys.readouterr().err
    assert endless.taken == (16 << 20) + 1


def test_simulations_read_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nodes.csv").write_text(NODE)
    StandardInput(b"name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,1,x\n", monkeypatch)
    assert main(["simulate", "packing", "--nodes", str(tmp_path / "nodes.csv"), "--pods", "-"]) == 1
    assert "gpu_milli is 'x'" in capsys.readouterr().err
    StandardInput(b"[" * 100_000, monkeypatch)
    assert main(["simulate", "nodes", "--pools", "-", "--pods", "-"]) == 1
    assert "is no YAML: is nested more than 100 deep" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[" * 100_000, "&a [*a]", "a: !!int x", "{" * 5000])
def test_attacks_on_check_are_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    assert main(["check", str(tmp_path / "a.yaml")]) == 1
    printed = capsys.readouterr()
    assert "GP100" in printed.out
    assert "Traceback" not in printed.out + printed.err


def test_a_finding_shows_a_long_line_around_its_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("long.yaml").write_text(f"a: {'x' * 5000} : y{'z' * 5000}\n")
    assert main(["check", "long.yaml"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 200
    (at,) = (line for line in lines if line.rstrip().endswith("^"))
    source = lines[lines.index(at) - 1]
    assert source[at.index("^")] == ":"
