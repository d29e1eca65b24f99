"""Takes gpuplane's insertions out of a TOML text that others may have edited since: the way back of `toml_edit`.

Marks say what is ours, and people edit marked lines too: they break an array into lines, add an entry of their own, or
remove ours. So only our element leaves an array. The result is proved as every edit is: it has to parse, and to mean
the old meaning without exactly what the marks say. An edit without this proof is refused. A text that does not parse
stays as it is: what is ours cannot be recognised in it.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from gpuplane.toolkit.toml_edit import (
    MARK,
    Statement,
    elements,
    prove,
    refused,
    rest_of_line,
    statements,
    strip_blocks,
    strip_marks,
)

_NOTE = re.compile(rf"[ \t]*{re.escape(MARK)}(?:: after the last line)?[ \t]*(?=\r?$)", re.MULTILINE)
_WAS = f"{MARK}: was "


def strip(text: str, arrays: Mapping[str, str], where: str) -> str:
    """`text` without what `toml_edit` inserted; a text without such insertions as it is.

    Args:
        arrays: the elements that `add_element` added, by key.

    Raises:
        InvalidInput: it was edited so that our part cannot be taken out safely.
    """
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return text
    body = strip_blocks(text)
    try:
        tomllib.loads(body)
        expected = _expected(body, arrays)
    except tomllib.TOMLDecodeError:
        raise refused(where, ("# set by gpuplane: begin",)) from None
    for key, element in arrays.items():
        body = _without_element(body, key, element)
    new = strip_marks(body)
    prove(new, expected, where, (MARK,))
    return new


def _expected(text: str, arrays: Mapping[str, str]) -> dict[str, Any]:
    """The meaning of `text` without the statements and values that are marked, and without our elements."""
    data = copy.deepcopy(tomllib.loads(text))
    for statement in statements(text):
        note = text[statement.end : rest_of_line(text, statement.end)]
        if statement.header or MARK not in note or statement.path in {(key,) for key in arrays}:
            continue
        parent = data
        for key in statement.path[:-1]:
            parent = parent[key]
        if _WAS in note:
            parent[statement.path[-1]] = tomllib.loads(f"x = {note.partition(_WAS)[2]}")["x"]
        else:
            del parent[statement.path[-1]]
    for key, element in arrays.items():
        array = _array(text, key)
        if array is None:
            continue
        left = [value for value in data[key] if value != element]
        if left or _stays(text, array, element):
            data[key] = left
        else:
            del data[key]
    return data


def _array(text: str, key: str) -> Statement | None:
    """The statement that sets the array `key` of the top level."""
    found = next((s for s in statements(text) if not s.header and s.path == (key,)), None)
    return found if found is not None and text[found.value[0]] == "[" else None


def _stays(text: str, statement: Statement, element: str) -> bool:
    """Return whether an array without elements is left: one that was there, or in which people's comments are."""
    if not _NOTE.search(_lines(text, statement)):
        return True
    inner = _emptied(text, statement, element)
    return bool(_NOTE.sub("", inner).strip(" \t\r\n,"))


def _lines(text: str, statement: Statement) -> str:
    return text[statement.start : rest_of_line(text, statement.end)]


def _emptied(text: str, statement: Statement, element: str) -> str:
    """Return the text between the brackets without our element."""
    first, last = statement.value[0] + 1, statement.value[1] - 1
    inner = text[first:last]
    for begin, end in reversed(_spans(text, statement, element)):
        inner = inner[: begin - first] + inner[end - first :]
    return inner


def _spans(text: str, statement: Statement, element: str) -> list[tuple[int, int]]:
    return [
        (begin, end)
        for begin, end in elements(text, statement.value[0])
        if tomllib.loads(f"x = {text[begin:end]}")["x"] == element
    ]


def _without_element(text: str, key: str, element: str) -> str:
    statement = _array(text, key)
    if statement is None:
        return text
    ours = _spans(text, statement, element)
    lines = _lines(text, statement)
    marked = _NOTE.search(lines) is not None
    only = all(span in ours for span in elements(text, statement.value[0]))
    if marked and only and not _stays(text, statement, element):
        if "\n" not in lines:
            return text  # one line, which goes by its mark
        end = rest_of_line(text, statement.end)
        return text[: statement.start] + text[end:].removeprefix("\r").removeprefix("\n")
    for span in reversed(ours):
        text = _cut(text, statement, span)
    if marked:
        statement = _array(text, key)
        assert statement is not None, "an element was cut, no more"
        end = rest_of_line(text, statement.end)
        text = text[: statement.start] + _NOTE.sub("", text[statement.start : end]) + text[end:]
    return text


def _cut(text: str, statement: Statement, span: tuple[int, int]) -> str:
    """`text` without an element of an array and with one comma less; comments stay."""
    begin, end = span
    before = text[statement.value[0] + 1 : begin]
    if before.endswith(", ") and before[:-2].rstrip()[-1:] in ("'", '"'):
        return text[: begin - 2] + text[end:]  # as it was added
    after = re.match(r"[ \t]*,[ \t]*", text[end:])
    if after is not None:
        end += after.end()
    line = text.rfind("\n", 0, begin) + 1
    if not text[line:begin].strip(" \t") and text[end : rest_of_line(text, end)] == "":
        newline = re.match(r"\r?\n", text[end:])
        return text[:line] + text[end + (newline.end() if newline else 0) :]
    return text[:begin] + text[end:]
