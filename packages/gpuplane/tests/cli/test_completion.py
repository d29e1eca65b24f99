"""Completion: what is listed at a tab, and what real shells make of it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

import gpulab.verbs
from gpuplane.api.codes import CODES
from gpuplane.cli.completion import candidates, complete, kubectl_complete
from gpuplane.cli.components import OPERANDS, OTHERS
from gpuplane.cli.main import main
from simgpu.machines import machines
from tests.support.terminals import plain, program_on_terminal

COMPONENTS = OPERANDS | OTHERS | gpulab.verbs.COMPONENTS
# Names of contexts as `aws eks update-kubeconfig` makes them.
CONTEXT = "arn:aws:eks:us-east-1:123456789012:cluster/prod"
SET_UP = {
    "bash": ("bash --norc --noprofile -i", "source ./script"),
    "zsh": ("zsh -f -i", "autoload -U compinit; compinit -D -u; source ./script"),
    "zsh-file": ("zsh -f -i", "fpath=($PWD $fpath); autoload -U compinit; compinit -D -u"),
    "fish": ("fish --no-config -i", "source ./script"),
}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sta"], ["status"]),
        (["run", "dr"], ["driver"]),
        (["status", "--wa"], ["--wait", "--watch"]),
        (["status", "-o", "y"], ["yaml"]),
        (["run", "nonsense", ""], sorted(COMPONENTS)),
        (["status", "g"], ["gpus"]),
        (["help", "st"], ["status"]),
        (["help", "share", ""], ["run", "top"]),
        (["help", "status", ""], []),
        (["explain", "GP20"], [code for code in CODES if code.startswith("GP20")]),
        (["status", "--output=j"], ["--output=json"]),
        (["status", "-wo", "j"], ["json"]),
        (["-n", "ml", "stat"], ["status"]),
        (["-o", "json", "simulate", "n"], ["nodes"]),
        (["up", "--node", "big=t4-u"], ["big=t4-ubuntu18", "big=t4-ubuntu22"]),
        (["up", "--node=big=t4-u"], ["--node=big=t4-ubuntu18", "--node=big=t4-ubuntu22"]),
        (["share", "run", "--", "st"], []),
        (["status", "--watch=y"], []),
        (["up", "--node", "h100"], [name for name in sorted(machines()) if name.startswith("h100")]),
    ],
)
def test_completion_knows_commands_flags_and_values(words: list[str], expected: list[str]) -> None:
    assert candidates(words) == expected


def test_no_name_is_printed_that_a_terminal_would_carry_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("prod", "p\x1b]0;owned\x07", "p\nrm", "p\x9b2J")
    contexts = [{"name": name, "context": {"cluster": "c", "user": "u"}} for name in names]
    (tmp_path / "config").write_text(json.dumps({"kind": "Config", "contexts": contexts}))
    words = ["status", "--kubeconfig", str(tmp_path / "config"), "--context", "p"]
    assert complete(words) == 0
    assert capsys.readouterr().out == "prod\n"
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-gpuplane", *words])
    kubectl_complete()
    assert capsys.readouterr().out == "prod\n:4\n"


def test_completion_knows_the_contexts_of_a_kubeconfig(tmp_path: Path) -> None:
    contexts = [{"name": name, "context": {"cluster": "c", "user": "u"}} for name in ("prod", "dev")]
    (tmp_path / "config").write_text(json.dumps({"kind": "Config", "contexts": contexts}))
    assert candidates(["status", "--kubeconfig", str(tmp_path / "config"), "--context", ""]) == ["dev", "prod"]
    assert candidates(["explain", "--kubeconfig", str(tmp_path / "none"), ""]) == [], "no cluster to ask"
    assert candidates(["status", f"--kubeconfig={tmp_path}/config", "--context=d"]) == ["--context=dev"]


@pytest.mark.parametrize(
    ("words", "listed"), [(["status", "--output=js"], ["json"]), (["up", "--node", "big=t4-l"], ["big=t4-light"])]
)
def test_kubectl_puts_the_flag_before_the_value_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], listed: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-gpuplane", *words])
    assert kubectl_complete() == 0
    assert capsys.readouterr().out.splitlines() == [*listed, ":4"]


@pytest.mark.deadline(600)  # each key that is completed starts a program
@pytest.mark.parametrize("shell", SET_UP)
async def test_a_shell_completes_by_the_script_that_is_printed(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys are pressed on a terminal; the shell runs the completed line with a program that prints its arguments."""
    command, set_up = SET_UP[shell]
    program, *flags = command.split()
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"no {program} here")
    assert main(["completion", program]) == 0
    script = capsys.readouterr().out
    (tmp_path / "script").write_text(script)
    (tmp_path / "_gpuplane").write_text(script)
    (tmp_path / "gpuplane").write_text(
        f"""#!/bin/sh
if [ "$1" = __complete ]; then
    {sys.executable} -m gpuplane "$@"
    printf "[COMPLETED]" > /dev/tty
else
    printf "<%s>" "$@" END
fi
"""
    )
    (tmp_path / "gpuplane").chmod(0o755)
    config = {"kind": "Config", "contexts": [{"name": CONTEXT, "context": {"cluster": "c", "user": "u"}}]}
    (tmp_path / "config").write_text(json.dumps(config))
    typed = {
        "status --wat\t": "<status><--watch>",
        "status --output=js\t": "<status><--output=json>",
        "-n ml stat\t": "<-n><ml><status>",
        "help stat\t": "<help><status>",
        "up --node big=a10g-rh\t": "<up><--node><big=a10g-rhel9>",
        "up --node=big=a10g-rh\t": "<up><--node=big=a10g-rhel9>",
        "status --context ar\t": f"<status><--context><{CONTEXT}>",
        "status --context arn:aws:ek\t": f"<status><--context><{CONTEXT}>",
        "status --context=arn:aws:ek\t": f"<status><--context={CONTEXT}>",
        "status --kubeconfig=scr\t": "<status><--kubeconfig=script>",
    }
    if shell == "zsh-file":  # the same script, found another way
        typed = dict(list(typed.items())[:1])
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "KUBECONFIG": str(tmp_path / "config"),
        "HOME": str(tmp_path),
        "PWD": str(tmp_path),
    }
    async with program_on_terminal(
        found, *flags, columns=200, shell=True, directory=tmp_path, environment=environment
    ) as terminal:
        terminal.type(f"{set_up}; echo READY''NOW\r")
        await terminal.until(lambda: "READYNOW" in plain(terminal.text))
        for keys, expected in typed.items():
            before = len(terminal.text)
            terminal.type(f"gpuplane {keys}")
            await terminal.until(lambda before=before: "[COMPLETED]" in terminal.text[before:])  # type: ignore[misc]
            terminal.type("\r")
            await terminal.until(lambda before=before: "<END>" in plain(terminal.text[before:]))  # type: ignore[misc]
            assert f"{expected}<END>" in plain(terminal.text[before:]), (keys, plain(terminal.text[before:]))
