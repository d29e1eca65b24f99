"""The whole command line as one table of parsers; what a command does is imported only when it runs."""

from __future__ import annotations

import argparse
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gpuplane import __version__
from gpuplane.cli.options import Parser, did_you_mean, examples
from gpuplane.cli.run_parser import add_run
from gpuplane.cli.verbs import Verbs, installed


def parse(arguments: Sequence[str]) -> Namespace:
    """The options of one command line; `command` is the function to call. Exits with 2 on wrong usage."""
    words = _without_help(arguments)
    for_all = not words or words[0].startswith("-")  # the help lists every command
    runs = words[:1] == ["run"]
    if for_all or not knows(parser := build(only_run=runs), words):
        parser = build(installed(), only_run=runs)
        if len(words) > 1:
            from gpuplane.cli.word_order import commands_first  # late: an operand's words need no other order

            words = commands_first(parser, _without_help(commands_first(parser, words)))
    options, unknown = parser.parse_known_args(words)
    if unknown:
        _refuse(parser, words, unknown)
    if not hasattr(options, "command"):
        parser.print_help()
        parser.exit(0)
    return options


def _without_help(words: Sequence[str]) -> list[str]:
    """Return `help COMMAND` as `COMMAND --help`."""
    return [*words[1:], "--help"] if list(words[:1]) == ["help"] else list(words)


def _refuse(parser: Parser, words: Sequence[str], unknown: Sequence[str]) -> NoReturn:
    """End with wrong usage, as the command does that the unknown words were for."""
    # late: only after a mistake
    from gpuplane.cli.word_order import find_flag, flags_below, named_parser, own_flags, places

    command, _ = named_parser(parser, words)
    flag = unknown[0].partition("=")[0]
    if command is parser and find_flag(flags_below(parser), unknown[0]) is not None:
        parser.error(f"no COMMAND is named for {' '.join(unknown)}")
    meant = did_you_mean(flag, own_flags(command))
    if flag.startswith("--") and flag[2:] in places(command):
        meant = f"; write it without the flag: {command.prog} {flag[2:].upper()}"
    command.error(f"unknown: {' '.join(unknown)}{meant}")


def knows(parser: ArgumentParser, arguments: Sequence[str]) -> bool:
    """Return whether the first words name a command of this parser, and its action or component."""
    for word in arguments:
        choices = subparsers(parser)
        if not choices:
            return True
        if word not in choices:
            return False
        parser = choices[word]
    return not subparsers(parser)


def subparsers(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    """Return the parsers of the words that may follow, by word."""
    for action in parser._actions:  # NB: argparse has no public way to list them
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def build(extensions: Iterable[Verbs] = (), *, only_run: bool = False) -> Parser:
    """The parser of gpuplane's own commands and those of `extensions`.

    Shell completion and the reference in docs/ are made from it too. With `only_run` it knows `gpuplane run` alone: a
    container starts so, and the other commands take a tenth of its start.
    """
    extensions = tuple(extensions)
    called_by_kubectl = Path(sys.argv[0]).name == "kubectl-gpuplane"
    name = "kubectl gpuplane" if called_by_kubectl else "gpuplane"
    parser = Parser(prog=name, description="GPUs on Kubernetes, from bare machines to a shared cluster.")
    parser.add_argument("--version", action="version", version=f"gpuplane {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    examples(
        parser,
        "gpuplane demo                         the whole story on this machine",
        "gpuplane install --dry-run            the manifests, to read first",
        "gpuplane status                       what every GPU node waits for",
        "gpuplane explain ml/train-0           why a pod waits, and what would help",
        "gpuplane help install                 the help of a command",
    )
    if not only_run:
        _add_commands(commands, extensions)
    add_run(commands, extensions)
    return parser


def _add_commands(commands: Any, extensions: Iterable[Verbs]) -> None:
    """Add every command but `run`."""
    # late: an operand starts without them
    from gpuplane.cli.cluster_parser import add_cluster_commands
    from gpuplane.cli.local_parser import add_local_commands
    from gpuplane.cli.machine_parser import add_machine
    from gpuplane.cli.share_parser import add_share
    from gpuplane.cli.simulate_parser import add_simulate

    for verbs in extensions:
        verbs.add_commands(commands)
    for add in (add_cluster_commands, add_local_commands, add_machine, add_share, add_simulate):
        add(commands)
