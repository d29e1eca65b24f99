"""Shell completion, made from the parser itself so that it knows every flag.

`gpuplane completion SHELL` prints a script; `kubectl_complete-gpuplane` answers kubectl, which calls it with the words
so far (the last one may be half typed) and reads one candidate a line, then `:4` (cobra's "no file names").
"""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from collections.abc import Sequence

import shtab

from gpuplane.cli.parser import build, subparsers
from gpuplane.cli.terminal import Console
from gpuplane.cli.verbs import installed


def completion(options: Namespace, screen: Console) -> int:
    screen.print(shtab.complete(build(installed()), shell=options.shell))
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """Return the completions of the last of `words`."""
    parser: argparse.ArgumentParser = build(installed())
    *before, last = words or [""]
    for word in before:
        parser = subparsers(parser).get(word, parser)
    if last.startswith("-"):
        found = [text for action in parser._actions for text in action.option_strings]
    else:
        found = list(subparsers(parser))
        if before:
            values = next((a.choices for a in parser._actions if before[-1] in a.option_strings and a.choices), None)
            found = [str(value) for value in values] if values is not None else found
    return sorted(text for text in found if text.startswith(last))


def kubectl_complete() -> int:
    """Entry point of `kubectl_complete-gpuplane`."""
    for text in candidates(sys.argv[1:]):
        sys.stdout.write(text + "\n")
    sys.stdout.write(":4\n")
    return 0
