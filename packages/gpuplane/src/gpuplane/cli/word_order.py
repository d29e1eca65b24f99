"""Puts flags that stand before a command behind it, where argparse reads them: `-n ml status gpus` is understood as
`status -n ml gpus`, `simulate -o json nodes` as `simulate nodes -o json`.

Which word a flag takes is the same for all commands, so the command is found before its parser is known.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence

from gpuplane.cli.parser import subparsers

Flags = Mapping[str, argparse.Action]


def commands_first(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Return the words with the command, its action or its component before the flags.

    Words behind `--` stay where they are. An unknown flag is read as one without a value.
    """
    choices = subparsers(parser)
    place = 0
    if choices and words and words[0].startswith("-"):
        flags = flags_below(parser)
        if find_flag(flags, words[0]) is None and find_flag(own_flags(parser), words[0]) is not None:
            return list(words)  # the parser's own, as --version
        place = _skip_flags(words, flags, choices)
    if not choices or place == len(words) or words[place] in ("-", "--"):
        return list(words)
    command, others = words[place], [*words[:place], *words[place + 1 :]]
    return [command, *(commands_first(choices[command], others) if command in choices else others)]


def named_parser(
    parser: argparse.ArgumentParser, words: Sequence[str]
) -> tuple[argparse.ArgumentParser, tuple[str, ...]]:
    """Return the parser of the command that the first words name, and these words."""
    named: list[str] = []
    for word in words:
        choices = subparsers(parser)
        if word not in choices:
            break
        parser = choices[word]
        named.append(word)
    return parser, tuple(named)


def flags_below(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the flags of all commands below a parser, by spelling."""
    found: dict[str, argparse.Action] = {}
    for sub in subparsers(parser).values():
        found |= own_flags(sub) | flags_below(sub)
    return found


def places(parser: argparse.ArgumentParser) -> set[str]:
    """Return the names of the arguments of one parser that have no flag."""
    # NB: argparse has no public way to list them
    return {action.dest for action in parser._actions if not action.option_strings}


def own_flags(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the flags of one parser, by spelling."""
    # NB: argparse has no public way to list them
    return {text: action for action in parser._actions for text in action.option_strings}


def find_flag(flags: Flags, word: str) -> argparse.Action | None:
    """Return the flag that a word names as argparse reads it, also shortened, as `--names`, or with its value; None for
    none.
    """
    name, _, _ = word.partition("=")
    if name in flags:
        return flags[name]
    if not name.startswith("--"):
        return flags.get(word[:2])
    near = {id(action): action for text, action in flags.items() if text.startswith(name)}
    return next(iter(near.values())) if len(near) == 1 else None


def flag_of_value(flags: Flags, word: str) -> argparse.Action | None:
    """Return the flag that takes the next word: `-n` of `-wn`; None where no flag does, as in `-nml` or `--name=x`."""
    if "=" in word or not word.startswith("-"):
        return None
    if word.startswith("--"):
        action = find_flag(flags, word)
        return None if action is None or action.nargs == 0 else action
    for place, letter in enumerate(word[1:], 1):
        action = flags.get(f"-{letter}")
        if action is None:
            return None
        if action.nargs != 0:
            return action if place == len(word) - 1 else None
    return None


def _skip_flags(words: Sequence[str], flags: Flags, choices: Collection[str]) -> int:
    """Return the place of the first word that is no flag and no value of a flag."""
    place = 0
    while place < len(words) and words[place].startswith("-") and words[place] not in ("-", "--"):
        action = flag_of_value(flags, words[place])
        place += 1
        if action is None:
            continue
        place += 1
        if action.nargs == "+":
            while place < len(words) and not words[place].startswith("-") and words[place] not in choices:
                place += 1
    return min(place, len(words))
