"""Flags before the command, which mean the same as flags after it."""

from __future__ import annotations

import argparse

import pytest

from gpuplane.cli import parser, verbs, word_order
from gpuplane.cli.main import main
from gpuplane.cli.parser import parse

ORDERS = [
    ("-v status", "status -v"),
    ("-n ml status", "status -n ml"),
    ("-nml status gpus", "status -nml gpus"),
    ("--namespace=ml -o wide status gpus", "status --namespace=ml -o wide gpus"),
    ("--namesp status status", "status --namesp status"),
    ("-wn ml status", "status -wn ml"),
    ("--timeout 5s --kubeconfig /k explain ml/x", "explain --timeout 5s --kubeconfig /k ml/x"),
    ("-o json driver plan", "driver plan -o json"),
    ("driver -o json plan", "driver plan -o json"),
    ("-q driver --precompiled plan", "driver plan -q --precompiled"),
    ("--no-scheduler install --dry-run", "install --no-scheduler --dry-run"),
    ("--pools a b --pods c simulate nodes", "simulate nodes --pools a b --pods c"),
    ("-q share --core 30 run -- status -v", "share run -q --core 30 -- status -v"),
    ("-v run --node-name up driver", "run driver -v --node-name up"),
    ("--node t4-ubuntu22 up --detach", "up --node t4-ubuntu22 --detach"),
]


@pytest.mark.parametrize(("flags_first", "verb_first"), ORDERS)
def test_flags_may_stand_before_the_command(flags_first: str, verb_first: str) -> None:
    found, expected = (vars(parse(words.split())) for words in (flags_first, verb_first))
    assert {**found, "command": None} == {**expected, "command": None}


def test_a_flag_takes_the_same_words_of_every_command() -> None:
    """The parser reads flags before the command, so it must know how many words each flag takes."""
    taken: dict[str, set[bool]] = {}

    def collect(command: argparse.ArgumentParser) -> None:
        for text, action in word_order.own_flags(command).items():
            taken.setdefault(text, set()).add(action.nargs == 0)
        for sub in parser.subparsers(command).values():
            collect(sub)

    collect(parser.build(verbs.installed()))
    assert len(taken) > 50 and not [text for text, found in taken.items() if len(found) > 1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-v", "gpuplane: no COMMAND is named for -v"),
        ("-n status", "gpuplane: no COMMAND is named for -n"),
        ("-n ml stauts", "gpuplane: unknown COMMAND: stauts; did you mean status?"),
        ("-n ml ls", "gpuplane ls: unknown: -n ml\n"),
        ("status --wach", "gpuplane status: unknown: --wach; did you mean --watch?"),
        ("--wach status", "gpuplane status: unknown: --wach"),
        ("--versoin", "gpuplane: unknown: --versoin; did you mean --version?"),
    ],
)
def test_a_flag_that_a_command_does_not_have_is_refused_by_that_command(
    capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words.split())
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
