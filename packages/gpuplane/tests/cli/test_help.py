"""The help of each command, and its examples."""

from __future__ import annotations

import argparse
import re
import textwrap

import pytest

from gpuplane.cli import parser, verbs
from gpuplane.cli.main import main
from gpuplane.cli.parser import parse


def test_help_may_stand_before_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for words in (["-h", "status"], ["-q", "help", "status"], ["status", "--help"]):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] == shown[2]


@pytest.mark.parametrize("words", [["help"], ["help", "install"], ["help", "run", "driver"]])
def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    shown = []
    for arguments in (words, [*words[1:], "--help"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]


def commands_with_help() -> list[str]:
    """Return every command except `help` and the components of `gpuplane run`, which its own help lists."""
    found = [""]

    def collect(command: argparse.ArgumentParser, words: tuple[str, ...]) -> None:
        for word, sub in parser.subparsers(command).items():
            if words != ("run",) and word != "help":
                found.append(" ".join((*words, word)))
                collect(sub, (*words, word))

    collect(parser.build(verbs.installed()), ())
    return found


@pytest.mark.parametrize("command", commands_with_help())
def test_the_help_of_a_command_has_examples_that_are_understood(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    _, _, page = capsys.readouterr().out.partition("\n\n")  # skip the usage, where argparse breaks no list of choices
    assert not [line for line in page.splitlines() if len(line) > 80]
    _, _, listed = page.partition("examples:\n")
    assert listed
    for line in textwrap.dedent(listed).splitlines():
        found = re.findall(r"gpuplane ([^|>)]+)", line.partition("   ")[0])
        assert found[0].startswith(command), "an example of another command"
        for words in found:
            if not words.startswith("help"):
                assert parse(words.split()).command
