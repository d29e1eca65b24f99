"""Regular expressions of Go (RE2) for Python's `re`.

The two differ where schemas and rules use them: `$` and `\\z` mean the very end, `(?i)` may stand anywhere and holds
for the rest of its group, classes have POSIX names, `\\d` and `\\w` are ASCII. What Python cannot do (`\\p{Greek}`) is
refused.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_POSIX: Final = {
    "[:alnum:]": "a-zA-Z0-9",
    "[:alpha:]": "a-zA-Z",
    "[:ascii:]": r"\x00-\x7f",
    "[:blank:]": r"\t ",
    "[:digit:]": "0-9",
    "[:lower:]": "a-z",
    "[:punct:]": r"!-/:-@\[-`{-~",
    "[:space:]": r"\s",
    "[:upper:]": "A-Z",
    "[:word:]": r"\w",
    "[:xdigit:]": "0-9a-fA-F",
}
_FLAGS: Final = re.compile(r"\(\?([imsU]*(?:-[imsU]+)?)\)")
_ESCAPES: Final = {"z": r"\Z", "Z": r"\Z"}


@lru_cache(maxsize=2048)
def regex(pattern: str) -> re.Pattern[str]:
    """Raise ValueError, worded as Go words it, for an invalid pattern."""
    try:
        return re.compile(_translated(pattern), re.ASCII)
    except re.error as problem:
        raise ValueError(f"error parsing regexp: {problem}: `{pattern}`") from None


def _translated(pattern: str) -> str:
    out: list[str] = []
    # For each open group the flag groups that were opened in it, which end where it ends and begin again after a `|`.
    scopes: list[list[str]] = [[]]
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 < len(pattern):
            out.append(_ESCAPES.get(pattern[at + 1], pattern[at : at + 2]))
            at += 2
            continue
        if char == "[":
            text, at = _class(pattern, at)
            out.append(text)
            continue
        if char == "(" and (match := _FLAGS.match(pattern, at)):
            opening = f"(?{match[1]}:"
            scopes[-1].append(opening)
            out.append(opening)
            at = match.end()
            continue
        if char == "(":
            scopes.append([])
        elif char == ")" and len(scopes) > 1:
            out.append(")" * len(scopes.pop()))
        elif char == "|":
            out.append(")" * len(scopes[-1]) + "|" + "".join(scopes[-1]))
            char = ""
        elif char == "$":
            char = r"\Z"
        out.append(char)
        at += 1
    out.append(")" * sum(len(scope) for scope in scopes))
    return "".join(out)


def _class(pattern: str, start: int) -> tuple[str, int]:
    """A bracket expression in Python's spelling and where it ends."""
    at = start + 1
    out = ["["]
    if pattern.startswith("^", at):
        out.append("^")
        at += 1
    if pattern.startswith("]", at):
        out.append(r"\]")
        at += 1
    while at < len(pattern) and pattern[at] != "]":
        name = pattern[at : pattern.find(":]", at) + 2] if pattern.startswith("[:", at) else ""
        if name in _POSIX:
            out.append(_POSIX[name])
            at += len(name)
        elif pattern[at] == "\\":
            out.append(pattern[at : at + 2])
            at += 2
        else:
            out.append("\\[" if pattern[at] == "[" else pattern[at])
            at += 1
    return "".join(out) + pattern[at : at + 1], at + 1
