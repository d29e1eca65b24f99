"""Our element in the top-level `imports` of a Go template of TOML, as k3s and rke2 have it, also after edits by others.

A template does not parse, so a statement is found line by line: from the line that begins it, as many lines as parse by
themselves. Such a statement is edited and proved as TOML is (`toml_edit`, `toml_strip`); every other byte stays. What
cannot be found in this way is refused where it matters: where our mark is in it, or where an element is to be added.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from gpuplane.toolkit import toml_edit as edit
from gpuplane.toolkit import toml_strip
from kubekit.errors import InvalidInput

_MARKED = re.compile(rf"{re.escape(edit.MARK)}[ \t]*\r?$", re.MULTILINE)
_MARKED_COMMENT = re.compile(rf"^[ \t]*#[^\n]*{re.escape(edit.MARK)}[ \t]*(?:\r?\n|\Z)", re.MULTILINE)
_HEADER = re.compile(r"^[ \t]*\[", re.MULTILINE)
_IN_STRING = ('"""', "'''")
_TEMPLATE_COMMENT = re.compile(r"\{\{(?:-\s)?/\*.*?\*/(?:\s-)?\}\}", re.DOTALL)


def strip(text: str, key: str, element: str, where: str) -> str:
    """`text` without `element` in its array `key`, and without our marks.

    Of several statements of `key`, as in the branches of an `if`, only those with our mark are ours.

    Raises:
        InvalidInput: it was edited so that our part cannot be taken out safely.
    """
    spans = _statements(text, key)
    for begin, end in reversed(spans):
        statement = text[begin:end]
        if len(spans) == 1 or _MARKED.search(statement):
            text = text[:begin] + toml_strip.strip(statement, {key: element}, where) + text[end:]
    text = _MARKED_COMMENT.sub("", text)
    if _MARKED.search(text):
        raise _refused(where, key, f'delete "{element}" and the comment "{edit.MARK}" from it')
    return text


def add_element(text: str, key: str, element: str, where: str) -> str:
    """`text` with `element` at the end of its array `key`, which becomes the first line when there is none.

    Raises:
        InvalidInput: `key` is set more than once, in a way that cannot be read, or is no array of strings.
    """
    spans = _statements(text, key)
    # NB: a line that is passed over may be a statement all the same, and two of one key stop the runtime.
    if len(spans) != len(_lines(text, key)) or len(spans) > 1:
        raise _refused(where, key, f'add "{element}" to its {key}')
    if not spans:
        newline = "\r\n" if "\r\n" in text else "\n"
        return edit.set_value("", (), key, [element], where).replace("\n", newline) + text
    ((begin, end),) = spans
    return text[:begin] + edit.add_element(text[begin:end], key, element, where) + text[end:]


def array(text: str, key: str) -> list[Any] | None:
    """The elements of the only statement of the array `key`; None where there is no such statement."""
    spans = _statements(text, key)
    found = tomllib.loads(text[slice(*spans[0])]).get(key) if len(spans) == 1 else None
    return found if isinstance(found, list) else None


def same(text: str, other: str, key: str) -> bool:
    """Return whether two templates differ in the layout of their statement of `key` only."""
    (theirs, rest), (ours, remainder) = ((array(each, key), _without(each, key)) for each in (text, other))
    return text == other or (theirs is not None and theirs == ours and rest == remainder)


def _without(text: str, key: str) -> str:
    for begin, end in reversed(_statements(text, key)):
        text = text[:begin] + text[end:]
    return text


def _statements(text: str, key: str) -> list[tuple[int, int]]:
    """Return where the statements lie that set `key` and can be read, with the ends of their last lines."""
    found: list[tuple[int, int]] = []
    for begin in _beginnings(text, key):
        if found and begin < found[-1][1]:
            continue
        end = _end(text, begin)
        if end is not None:
            found.append((begin, end))
    return found


def _beginnings(text: str, key: str) -> list[int]:
    """Return the lines that set `key` of the top level: before the first table, and not in a string."""
    header = next((found.start() for found in _HEADER.finditer(text) if not _inside(text, found.start())), len(text))
    return [begin for begin in _lines(text, key) if begin < header and not _inside(text, begin)]


def _lines(text: str, key: str) -> list[int]:
    """Return the lines that look like statements of `key`, in a table and in a string too; not in Go's comments."""
    spelled = f"(?:{re.escape(key)}|\"{re.escape(key)}\"|'{re.escape(key)}')"
    comments = [found.span() for found in _TEMPLATE_COMMENT.finditer(text)]
    lines = (found.start() for found in re.finditer(rf"^[ \t]*{spelled}[ \t]*=", text, re.MULTILINE))
    return [begin for begin in lines if not any(first <= begin < last for first, last in comments)]


def _inside(text: str, at: int) -> bool:
    return any(text.count(quotes, 0, at) % 2 for quotes in _IN_STRING)


def _end(text: str, begin: int) -> int | None:
    at = begin
    while at < len(text):
        at = text.find("\n", at) + 1 or len(text)
        try:
            tomllib.loads(text[begin:at])
        except tomllib.TOMLDecodeError:
            continue
        return at
    return None


def _refused(where: str, key: str, cure: str) -> InvalidInput:
    return InvalidInput(f"its {key} cannot be edited safely in a template", where=where, cure=cure)
