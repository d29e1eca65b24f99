"""Finds whether a pattern of Go (RE2) matches, in a time that grows with the text only.

Python's `re` tries alternatives one after the other: for `(a+)+$` it takes twice as long for each letter of the text
more, so any user who may write a pattern could stop a process. Here all alternatives are followed at once. Most
patterns have few alternatives, and Python matches them faster: for these the steps are counted before. Pure.

Source: Thompson, "Regular Expression Search Algorithm", 1968; Pike's virtual machine as in Cox, "Regular Expression
Matching: the Virtual Machine Approach", 2009.
"""

from __future__ import annotations

import re
from functools import lru_cache
from re import _compiler, _parser  # type: ignore[attr-defined]  # without them Python's syntax would be parsed here again
from typing import Any, Final

import msgspec

from kubekit.api.regexes import regex

MOST_STATES: Final = 10_000
MOST_STEPS: Final = 1_000_000
"""States times characters: 0.5 s at most."""
_OF_ONE_CHARACTER: Final = frozenset(("LITERAL", "NOT_LITERAL", "ANY", "IN"))


class _State(msgspec.Struct):
    """`test` must match at the position; `consumes`: one character of it. Without a test all of `next` are followed."""

    next: list[int]
    test: re.Pattern[str] | None = None
    consumes: bool = False


def find(pattern: str, text: str) -> list[str]:
    """Return all matches in the text. Raises ValueError for a pattern that is invalid or may take long."""
    if not _is_quick(pattern, text):
        raise ValueError(f"the pattern may take too long on {len(text)} characters: `{pattern}`")
    return [match.group() for match in regex(pattern).finditer(text)]


def is_match(pattern: str, text: str) -> bool:
    """Return whether the pattern matches anywhere in the text.

    Raises ValueError for a pattern that is invalid or too large for the text.
    """
    if _is_quick(pattern, text):
        return regex(pattern).search(text) is not None
    states = _states(pattern)
    if len(states) * (len(text) + 1) > MOST_STEPS:
        raise ValueError(f"the pattern has {len(states)} states, which is too many for {len(text)} characters")
    end, current = len(states) - 1, set[int]()
    for at in range(len(text) + 1):
        found, following = {0, *current}, set[int]()
        waiting = list(found)
        while waiting:
            state = states[waiting.pop()]
            if state.test is not None and state.test.match(text, at) is None:
                continue
            if state.consumes:
                following.update(state.next)
                continue
            fresh = [one for one in state.next if one not in found]
            found.update(fresh)
            waiting += fresh
        if end in found:
            return True
        current = following
    return False


def _is_quick(pattern: str, text: str) -> bool:
    """Return whether Python's `re` takes MOST_STEPS at most, by the number of ways to choose in the pattern."""
    choices = _choices(pattern)
    if choices is None:
        return False
    # NB: a repetition takes a step for each way to end it, so its steps are among the ways that follow.
    steps: int = choices.factor * (len(text) + 1) ** choices.degree * max(1, choices.size)
    return steps <= MOST_STEPS


class _Choices(msgspec.Struct, frozen=True):
    """At most `factor` * (characters + 1) ** `degree` ways to go through a pattern of `size` tests."""

    factor: int = 1
    degree: int = 0
    size: int = 1


@lru_cache(maxsize=2048)
def _choices(pattern: str) -> _Choices | None:
    """Return the choices of a search for the pattern; None where repetitions with choices are repeated."""
    items = list(_parsed(pattern))
    found = _of_sequence(items)
    # A pattern that begins with ^ fails at its first test at all places but one.
    if found is None or (items and str(items[0][0]) == "AT" and str(items[0][1]) == "AT_BEGINNING"):
        return found
    return _Choices(found.factor, found.degree + 1, found.size)


def _of_sequence(items: Any) -> _Choices | None:
    factor, degree, size = 1, 0, 0
    for item in items:
        found = _of_item(str(item[0]), item[1])
        if found is None:
            return None
        factor, degree, size = factor * found.factor, degree + found.degree, size + found.size
    return _Choices(factor, degree, size) if max(factor, size) <= MOST_STEPS else None


def _of_item(operation: str, argument: Any) -> _Choices | None:
    if operation in _OF_ONE_CHARACTER or operation == "AT":
        return _Choices()
    if operation == "SUBPATTERN":
        return _of_sequence(argument[3])
    if operation == "BRANCH":
        branches = [_of_sequence(branch) for branch in argument[1]]
        known = [branch for branch in branches if branch is not None]
        if len(known) < len(branches):
            return None
        factor, degree = sum(one.factor for one in known), max(one.degree for one in known)
        return _Choices(factor, degree, sum(one.size for one in known))
    if operation in ("MAX_REPEAT", "MIN_REPEAT"):
        least, most, inner = argument
        return _of_repeat(least, most, _of_sequence(inner))
    raise _unsupported(operation)


def _of_repeat(least: int, most: int, inner: _Choices | None) -> _Choices | None:
    if inner is None:
        return None
    size = inner.size + 1  # the test of the repetition itself: `()` has no other
    if (inner.factor, inner.degree) == (1, 0):
        if most is _parser.MAXREPEAT:
            return _Choices(1, 1, size * max(1, least))
        return _Choices(most - least + 1, 0, size * max(1, most))
    if most == 1:
        return _Choices(inner.factor + 1 - least, inner.degree, size)
    return None


def _unsupported(operation: str) -> ValueError:
    return ValueError(f"error parsing regexp: {operation.lower()} is not supported")


def _parsed(pattern: str) -> Any:
    """Return the parts of a pattern. Raises ValueError for an invalid one."""
    return _parser.parse(regex(pattern).pattern, re.ASCII)


@lru_cache(maxsize=256)
def _states(pattern: str) -> tuple[_State, ...]:
    """Return the states of a pattern: the first is its start, the last its end."""
    states = _Builder()
    states.sequence(_parsed(pattern), re.ASCII.value)
    states.add(_State([]))
    return tuple(states.all)


class _Builder:
    """Appends states; each part of a pattern begins at the next free number and continues at the one after it."""

    def __init__(self) -> None:
        self.all: list[_State] = []
        self._tests: dict[tuple[str, int], re.Pattern[str]] = {}

    def add(self, state: _State) -> _State:
        if len(self.all) >= MOST_STATES:
            raise ValueError(f"the pattern has more than {MOST_STATES} states")
        self.all.append(state)
        return state

    def sequence(self, items: Any, flags: int) -> None:
        for item in items:
            self._item(item, flags)

    def _item(self, item: Any, flags: int) -> None:
        operation, argument = str(item[0]), item[1]
        if operation in _OF_ONE_CHARACTER or operation == "AT":
            self._test(item, flags, consumes=operation != "AT")
        elif operation == "SUBPATTERN":
            _, added, removed, inner = argument
            self.sequence(inner, (flags | added) & ~removed)
        elif operation == "BRANCH":
            self._branches(argument[1], flags)
        elif operation in ("MAX_REPEAT", "MIN_REPEAT"):
            self._repeat(argument[0], argument[1], argument[2], flags)
        else:
            raise _unsupported(operation)

    def _test(self, item: Any, flags: int, *, consumes: bool) -> None:
        test = self._tests.get((str(item), flags))
        if test is None:
            state = _parser.State()
            state.flags = flags
            test = self._tests[str(item), flags] = _compiler.compile(_parser.SubPattern(state, [item]), flags)
        self.add(_State([len(self.all) + 1], test, consumes))

    def _branches(self, branches: Any, flags: int) -> None:
        start, ends = self.add(_State([])), []
        for branch in branches:
            start.next.append(len(self.all))
            self.sequence(branch, flags)
            ends.append(self.add(_State([])))
        for end in ends:
            end.next.append(len(self.all))

    def _repeat(self, least: int, most: int, inner: Any, flags: int) -> None:
        for _ in range(least):
            before = len(self.all)
            self.sequence(inner, flags)
            if len(self.all) == before:
                return  # NB: `()` has no states, so nothing else would end `((){1000}){1000}` early
        if most is _parser.MAXREPEAT:
            start = self.add(_State([len(self.all) + 1]))
            begin = len(self.all) - 1
            self.sequence(inner, flags)
            self.add(_State([begin]))
            start.next.append(len(self.all))
            return
        skips = []
        for _ in range(least, most):
            skips.append(self.add(_State([len(self.all) + 1])))
            self.sequence(inner, flags)
        for skip in skips:
            skip.next.append(len(self.all))
