"""The regular expressions of NodeFeatureRules: RE2, in time linear in the text and in memory with a limit.

Rules are written by users and evaluated for every node, so an expression must not be able to stop the master. RE2 has
no backtracking. Its programs and caches have a limit here, and few of them are retained: at most
`_MEMORY_BYTES * _RETAINED` of all expressions together.

Differences from Go's own implementation, which node feature discovery uses: an expression whose program needs more than
the limit is refused. That is the case for repetitions of large classes, as `(\\pL{20}){10}`.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import Any, Final

_MEMORY_BYTES: Final = 2 << 20  # of one expression: two thirds for its program, the rest for the program in reverse
_RETAINED: Final = 16
_LONGEST: Final = 4096  # characters of an expression; parsing takes memory before the limit of the program counts
_LONGEST_REASON: Final = 120  # characters; RE2 repeats the rest of the expression
LONGEST_TEXT: Final = 65536  # characters that a replacement may make
# What RE2 in C++ reads and Go's does not: any one byte. It stands behind an even number of backslashes.
_ANY_BYTE: Final = re.compile(r"\\Q.*?(?:\\E|$)|\\(?P<after>.)", re.DOTALL)
_REFERENCE: Final = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})", re.ASCII)


class Regexp:
    """One compiled expression. Texts may hold anything: lone surrogates count as question marks."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def matches(self, text: str) -> bool:
        """Return whether the expression matches somewhere in the text."""
        return self._compiled.search(_storable(text)) is not None

    def find(self, text: str) -> str:
        """Return the leftmost match; empty text where there is none."""
        found = self._compiled.search(_storable(text))
        return "" if found is None else str(found.group())

    def replace(self, text: str, by: str) -> str:
        """Return the text with every match replaced; `$1`, `${1}` and `$name` stand for groups, as in Go.

        An unknown group is empty. An empty match right behind another match does not count. Raises ValueError when the
        result is longer than `LONGEST_TEXT`.
        """
        text = _storable(text)
        parts: list[str] = []
        length = end = 0
        previous = -1
        for found in self._compiled.finditer(text):
            start, stop = found.span()
            if start == stop == previous:
                continue
            for part in (text[end:start], _REFERENCE.sub(partial(_group, found), by)):
                parts.append(part)
                length += len(part)
            if length > LONGEST_TEXT:
                raise ValueError(f"makes more than {LONGEST_TEXT} characters")
            end = previous = stop
        return "".join([*parts, text[end:]])


def _group(found: Any, name: re.Match[str]) -> str:
    reference = name[1] or name[2]
    if reference is None:
        return "$"
    try:
        return str(found[int(reference) if reference.isdecimal() else reference] or "")
    except IndexError:
        return ""


@lru_cache(maxsize=_RETAINED)
def compile_regexp(expression: str) -> Regexp:
    """Return the expression compiled. Raises ValueError for what RE2 or Go refuses, with the part at fault."""
    import re2  # 2 MiB that only readers of rules need

    if len(expression) > _LONGEST:
        raise ValueError(f"longer than {_LONGEST} characters")
    if any(found["after"] == "C" for found in _ANY_BYTE.finditer(expression)):
        raise ValueError("invalid escape sequence: \\C")
    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    try:
        # NB: not re2.compile, which retains 128 programs of its own.
        return Regexp(re2._Regexp(expression, options))
    except re2.error as error:
        why = error.args[0]
        text = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
        if "too large" in text:
            text = f"its program needs more than {_MEMORY_BYTES >> 20} MiB: repeat less, or name a smaller class"
        raise ValueError(text[:_LONGEST_REASON]) from error


def _storable(text: str) -> str:
    return text.encode(errors="replace").decode()
