"""The parts of which every command's parser is made: forms of answers, options that several commands have, usage
errors.
"""

from __future__ import annotations

import argparse
import importlib
import math
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NoReturn

# NB: argparse looks for a translation of each of its words in the file system, a third of the time of the parsers.
argparse._ = lambda text: text  # type: ignore[attr-defined]

FORMS: Final = ("text", "wide", "json", "yaml", "name")
"""The forms of a list of objects that have names."""
DOCUMENTS: Final = ("text", "json", "yaml")
"""The forms of a report, and of the answer of a command that writes."""


def lazy(module: str, function: str) -> Callable[[Namespace, Any], int]:
    """The command `module.function`, imported when it is called."""

    def call(options: Namespace, screen: Any) -> int:
        place = module if "." in module else f"gpuplane.cli.{module}"
        result: int = getattr(importlib.import_module(place), function)(options, screen)
        return result

    return call


MAX_PORT: Final = 65535
MOST_DIGITS: Final = 18  # which 64 bits hold
_NEGATIVE: Final = re.compile(r"-\.?\d")


class Parser(ArgumentParser):
    """argparse whose usage errors name the command's own help, and end with `wrong_usage`."""

    wrong_usage = 2

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": argparse.RawDescriptionHelpFormatter, **more})
        # NB: argparse reads `-5` as a value, and `-5s` as an unknown flag: then the value is reported as missing.
        self._negative_number_matcher = _NEGATIVE

    def error(self, message: str) -> NoReturn:
        from gpuplane.cli.terminal import Console, harmless  # late: a help that is right needs none of it

        said = harmless(f"{self.prog}: {message}", coloured=False)
        lines = Console(sys.stdout, sys.stderr, colour="never").wrapped(said, 2, sys.stderr)
        self.exit(self.wrong_usage, "\n  ".join([*lines, ""]).rstrip(" ") + f"See '{self.prog} --help'.\n")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        # NB: as of a variable that is not set; Path takes it for the current directory.
        if action.type is Path and not arg_string:
            raise argparse.ArgumentError(action, "'' names no file")
        return super()._get_value(action, arg_string)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # NB: argparse has no public way to word this error.
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        meant = did_you_mean(str(value), choices) or f": choose from {', '.join(choices)}"
        name = "/".join(action.option_strings) or action.metavar or action.dest
        raise argparse.ArgumentError(None, f"unknown {name}: {value}{meant}")


def completed(argument: argparse.Action, by: str) -> None:
    """Have the values of an argument listed at a tab: `by` is a function of `gpuplane.cli.completion`, or
    `module:function`.
    """
    argument.completer = by if ":" in by else f"gpuplane.cli.completion:{by}"  # type: ignore[attr-defined]


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`; did you mean status?`, empty when nothing is near."""
    from difflib import get_close_matches  # late: only after a mistake

    near = get_close_matches(word, list(choices), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def examples(parser: ArgumentParser, *lines: str) -> None:
    """End the help of a command with command lines that a reader can copy."""
    parser.epilog = "\n".join(["examples:", *(f"  {line}" for line in lines)])


def talk_options() -> Parser:
    """Return a parent parser with the options for the amount of output and for colours."""
    parent = Parser(add_help=False)
    group = parent.add_argument_group("output")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress and no hints")
    group.add_argument("-v", "--verbose", action="store_true", help="a stack trace with an error")
    group.add_argument("--color", choices=["auto", "always", "never"], default="auto", help="colour of verdicts")
    return parent


def form_options(*choices: str) -> Parser:
    """The forms that a command's answer can have."""
    parent = Parser(add_help=False)
    group = parent.add_argument_group("output")
    group.add_argument("-o", "--output", choices=choices, default="text", help="form of the answer")
    return parent


def cluster_options() -> Parser:
    """Return a parent parser with the options that select the cluster."""
    parent = Parser(add_help=False)
    group = parent.add_argument_group("cluster")
    group.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="kubeconfig file (default: $KUBECONFIG, ~/.kube/config)"
    )
    context = group.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    completed(context, "contexts")
    return parent


def scope_options(of_labels: str, default: str) -> Parser:
    """Return a parent parser with the options that select what is read, as kubectl has them."""
    parent = Parser(add_help=False)
    group = parent.add_argument_group("selection")
    spaces = group.add_mutually_exclusive_group()
    space = spaces.add_argument(
        "-n", "--namespace", default="", metavar="NAME", help=f"pods of this namespace (default: {default})"
    )
    completed(space, "namespaces")
    spaces.add_argument("-A", "--all-namespaces", action="store_true", help="pods of all namespaces")
    group.add_argument(
        "-l", "--selector", default="", metavar="LABELS", help=f"{of_labels} with these labels, as pool=train"
    )
    return parent


def timeout_options() -> Parser:
    """Return a parent parser with the longest time that a command may wait."""
    parent = Parser(add_help=False)
    group = parent.add_argument_group("cluster")
    group.add_argument(
        "--timeout", type=duration, metavar="TIME", default=300.0, help="how long to wait at most, as 90s or 5m"
    )
    return parent


def duration(text: str) -> float:
    """`90s`, `5m`, `1h`, `30d` or bare seconds, in seconds."""
    factor = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}.get(text[-1:], 0.0)
    try:
        seconds = float(text[:-1]) * factor if factor else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: 90s, 5m or 1h") from None
    if not math.isfinite(seconds):
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: 90s, 5m or 1h")
    if seconds < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is negative: 0s or more, such as 90s, 5m or 1h")
    return seconds


def positive(text: str) -> int:
    """A whole number from 1 to 999999."""
    return _number(text, least=1, digits=6)


def whole(text: str) -> int:
    """A whole number of at least 0, of MOST_DIGITS at most."""
    return _number(text, least=0, digits=MOST_DIGITS)


def _number(text: str, *, least: int, digits: int) -> int:
    if not (text.isascii() and text.isdecimal()) or (least and not text.strip("0")):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {least}")
    # NB: Python refuses to read numbers of thousands of digits, and takes long for them.
    if len(text.lstrip("0")) > digits:
        raise argparse.ArgumentTypeError(f"{text!r} is too large: {10**digits - 1} at most")
    return int(text)


def port(text: str) -> int:
    """A TCP port, or 0 for any that is free."""
    if not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS and int(text) <= MAX_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 0 to {MAX_PORT}")
    return int(text)
