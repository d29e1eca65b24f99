"""Small edits of TOML text that leave every other byte alone.

A library that parses and prints again keeps most of a file; "most" is not good enough for a file that a node needs to
boot. So only our own text is inserted, at a place that a scan of the statements gives, and every edit is proved: the
new text is parsed, and has to mean the old meaning plus exactly what was asked. An edit without this proof is refused.

Every insertion is marked with a comment, so that it can be taken out of a file that was edited since (`toml_strip`).

Grammar: toml.io, version 1.0. The scan needs to know only where statements and the elements of arrays begin and end.
"""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kubekit.errors import InvalidInput

MARK = "# set by gpuplane"
_BEGIN, _END, _LAST = f"{MARK}: begin", f"{MARK}: end", f"{MARK}: after the last line"
_BARE = re.compile(r"[A-Za-z0-9_-]+")
# A key as people write it: parts that are bare or quoted, white space around the dots.
_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_ASSIGNED = rf"[ \t]*{_PART}(?:[ \t]*\.[ \t]*{_PART})*[ \t]*=[ \t]*"


class Statement(msgspec.Struct, frozen=True):
    """A table header or an assignment: its text is `text[start:end]`, the rest of its last line not included.

    `path` is the table's for a header, and for an assignment the table's with the key's. `value` is where the value's
    text lies, (0, 0) for a header.
    """

    path: tuple[str, ...]
    start: int
    end: int
    header: bool
    value: tuple[int, int] = (0, 0)


def parse(text: str, where: str) -> dict[str, Any]:
    """The meaning of a TOML text.

    Raises:
        InvalidInput: with the line, when the text is no TOML.
    """
    try:
        return _loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        raise InvalidInput(
            f"it does not parse: {error}",
            where=f"{where}:{line.group(1) if line else len(text.splitlines())}",
            cure="repair the file; nothing was changed",
        ) from None


@functools.lru_cache(maxsize=32)
def _loads(text: str) -> dict[str, Any]:
    """Parse with a cache: one plan asks for the same few texts ten times. Callers do not change the result."""
    return tomllib.loads(text)


def dump(data: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """New TOML text of `data`, without headers of tables that hold nothing but tables."""
    values = {key: value for key, value in data.items() if not isinstance(value, dict)}
    text = "".join(f"{_key(key)} = {literal(value)}\n" for key, value in values.items())
    if path and (values or not data):
        text = f"[{'.'.join(map(_key, path))}]\n{text}"
    parts = [text] if text else []
    parts += [dump(value, (*path, key)) for key, value in data.items() if isinstance(value, dict)]
    return "\n".join(parts)


def literal(value: Any) -> str:
    """`value` as it is written after a `=`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(key)} = {literal(item)}' for key, item in value.items())}}}"
    return value.isoformat() if hasattr(value, "isoformat") else repr(value)


def set_value(text: str, table: tuple[str, ...], key: str, value: Any, where: str) -> str:
    """`text` with `table.key = value`; other bytes stay. The mark stores a value that is replaced.

    Raises:
        InvalidInput: the text is no TOML, or is written so that this cannot be done by insertion.
    """
    before = parse(text, where)
    if _get(before, (*table, key)) == value and type(_get(before, (*table, key))) is type(value):
        return text
    found = list(statements(text))
    old = next((s for s in found if not s.header and s.path == (*table, key)), None)
    newline = _newline(text)
    if old is not None:
        was = text[slice(*old.value)]
        if "\n" in was:
            raise refused(where, (*table, key))
        new = f"{text[: old.value[0]]}{literal(value)}  {MARK}: was {was}{text[old.end :]}"
    else:
        line = f"{_key(key)} = {literal(value)}  {MARK}"
        header = next((s for s in found if s.header and s.path == table), None)
        if not table:
            first = next((s for s in found if not s.header and s.path == ("version",)), None)
            place = 0 if first is None else rest_of_line(text, first.end)
            new = _insert_line(text, place, line, newline)
        elif header is not None:
            new = _insert_line(text, rest_of_line(text, header.end), line, newline)
        elif (sibling := _dotted_sibling(found, table)) is not None:
            last, inner = sibling
            line = f"{'.'.join(map(_key, (*inner, key)))} = {literal(value)}  {MARK}"
            new = _insert_line(text, rest_of_line(text, last.end), line, newline)
        else:
            new = append(text, f"[{'.'.join(map(_key, table))}]{newline}{_key(key)} = {literal(value)}")
    prove(new, _with(before, (*table, key), value), where, (*table, key))
    return new


def _dotted_sibling(found: Sequence[Statement], table: tuple[str, ...]) -> tuple[Statement, tuple[str, ...]] | None:
    """Find the last statement that sets a value in `table` by a dotted key, and `table` from that statement's header
    on. Such a table can have no header of its own.
    """
    above: tuple[str, ...] = ()
    sibling = None
    for statement in found:
        if statement.header:
            above = statement.path
        elif statement.path[: len(table)] == table and len(above) < len(table) < len(statement.path):
            sibling = statement, table[len(above) :]
    return sibling


def append_tables(text: str, tables: Mapping[str, Any], where: str) -> str:
    """`text` with new tables at its end, as one marked block. Tables that exist are refused."""
    before = parse(text, where)
    new = append(text, dump(tables).strip().replace("\n", _newline(text)))
    expected = merged(before, tables)
    prove(new, expected, where, tuple(tables))
    return new


def append(text: str, block: str) -> str:
    """`text` with a marked block after it."""
    newline = _newline(text)
    joint = "" if not text or text.endswith("\n") else f"{newline}{MARK}: no newline before{newline}"
    return f"{text}{joint}{_BEGIN}{newline}{block}{newline}{_END}{newline}"


def add_element(text: str, key: str, element: str, where: str) -> str:
    """`text` with `element` at the end of the top-level array `key`, which is made when there is none.

    Raises:
        InvalidInput: there is something else than an array of strings.
    """
    before = parse(text, where)
    array = before.get(key)
    if array is None:
        return set_value(text, (), key, [element], where)
    if not isinstance(array, list) or not all(isinstance(item, str) for item in array):
        raise InvalidInput(
            f"{key} is no array of strings",
            where=place_of(text, (key,), where),
            cure="repair the file; nothing was changed",
        )
    if element in array:
        return text
    statement = next((s for s in statements(text) if not s.header and s.path == (key,)), None)
    if statement is None:
        raise refused(where, (key,))
    spans = list(elements(text, statement.value[0]))
    if spans:
        place, new_text = spans[-1][1], f", {literal(element)}"
    else:
        place, new_text = statement.value[0] + 1, literal(element)
    new = text[:place] + new_text + text[place:]
    prove(new, {**before, key: [*array, element]}, where, (key,))
    return new


def strip_marks(text: str) -> str:
    """`text` without marked lines and blocks, line by line: for a text that is no TOML but the template of one, too."""
    text = strip_blocks(text)
    mark = re.escape(MARK)
    text = re.sub(rf"^({_ASSIGNED})\S.*?  {mark}: was (.*)$", r"\1\2", text, flags=re.MULTILINE)
    last = re.escape(_LAST)
    text = re.sub(rf"\r?\n[^\n]*  {last}\Z", "", text)
    # the last line no more, when a later edit goes on below it
    return re.sub(rf"^[^\n]*  (?:{mark}|{last})\r?\n", "", text, flags=re.MULTILINE)


def strip_blocks(text: str) -> str:
    """`text` without marked blocks."""
    begin, end = re.escape(_BEGIN), re.escape(_END)
    mark = re.escape(MARK)
    joint = rf"(?P<joint>\r?\n)(?:{mark}: no newline before\r?\n)"

    def cut(found: re.Match[str]) -> str:
        # a later line below our block stays a line of its own
        return found["joint"] if found["joint"] and found.end() < len(found.string) else ""

    return re.sub(rf"(?:{joint})?(?:^{begin}\r?\n(?:.*\r?\n)*?{end}\r?\n?)+", cut, text, flags=re.MULTILINE)


def statements(text: str) -> Iterator[Statement]:
    """The statements of a text that parses, in order."""
    table: tuple[str, ...] = ()
    at = 0
    while True:
        at = _skip(text, at, newlines=True)
        if at >= len(text):
            return
        start = at
        if text[at] == "[":
            double = text.startswith("[[", at)
            table, at = _dotted(text, at + (2 if double else 1))
            at = text.index("]", at) + (2 if double else 1)
            yield Statement(table, start, at, header=True)
            continue
        key, at = _dotted(text, at)
        at = _skip(text, text.index("=", at) + 1)
        end = _value_end(text, at)
        yield Statement((*table, *key), start, end, header=False, value=(at, end))
        at = end


def place_of(text: str, path: Sequence[str], where: str) -> str:
    """`where` with the line at which `path` is set, of a text that parses; without one where it is not set there."""
    wanted = tuple(path)
    found = next((s for s in statements(text) if s.path[: len(wanted)] == wanted), None)
    return where if found is None else f"{where}:{text.count(chr(10), 0, found.start) + 1}"


def elements(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Return where the elements of the array that begins at `start` lie."""
    at = start + 1
    while True:
        at = _skip(text, at, newlines=True)
        if text[at] == "]":
            return
        if text[at] == ",":
            at += 1
            continue
        end = _value_end(text, at)
        yield at, end
        at = end


def _skip(text: str, at: int, newlines: bool = False) -> int:
    """The next place that is neither white space nor comment."""
    blank = " \t\r\n" if newlines else " \t"
    while at < len(text):
        if text[at] in blank:
            at += 1
        elif text[at] == "#" and newlines:
            at = rest_of_line(text, at)
        else:
            break
    return at


def _dotted(text: str, at: int) -> tuple[tuple[str, ...], int]:
    parts = []
    while True:
        at = _skip(text, at)
        if text[at] in "\"'":
            end = _value_end(text, at)
            parts.append(str(tomllib.loads(f"x = {text[at:end]}")["x"]))
        else:
            match = _BARE.match(text, at)
            assert match is not None, "the text parses"
            parts.append(match.group())
            end = match.end()
        at = _skip(text, end)
        if text[at] != ".":
            return tuple(parts), at
        at += 1


def _value_end(text: str, at: int) -> int:
    for quotes in ('"""', "'''"):
        if text.startswith(quotes, at):
            return _multiline_end(text, at + 3, quotes)
    if text[at] == '"':
        at += 1
        while text[at] != '"':
            at += 2 if text[at] == "\\" else 1
        return at + 1
    if text[at] == "'":
        return text.index("'", at + 1) + 1
    if text[at] in "[{":
        closing = "]" if text[at] == "[" else "}"
        at += 1
        while text[at] != closing:
            if text[at] == "#":
                at = rest_of_line(text, at)
            elif text[at] in "[{\"'":
                at = _value_end(text, at)
            else:
                at += 1
        return at + 1
    end = at
    while end < len(text) and text[end] not in ",]}#\r\n":
        end += 1
    return at + len(text[at:end].rstrip())


def _multiline_end(text: str, at: int, quotes: str) -> int:
    while not text.startswith(quotes, at):
        at += 2 if quotes == '"""' and text[at] == "\\" else 1
    at += 3
    while text.startswith(quotes[0], at):  # up to two quotes may stand right before the closing ones
        at += 1
    return at


def rest_of_line(text: str, at: int) -> int:
    """Return where the line of `at` ends, its newline not included."""
    end = text.find("\n", at)
    if end < 0:
        return len(text)
    return end - 1 if end > at and text[end - 1] == "\r" else end


def _insert_line(text: str, place: int, line: str, newline: str) -> str:
    """A line of its own: before everything at 0, otherwise after the line that ends at `place`."""
    if place == 0:
        return line + newline + text
    if place == len(text):
        return text + newline + line.replace(MARK, _LAST)
    after = text.index("\n", place) + 1
    return text[:after] + line + newline + text[after:]


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else literal(name)


def _get(data: Any, path: Sequence[str]) -> Any:
    for key in path:
        if not isinstance(data, dict) or key not in data:
            return None
        data = data[key]
    return data


def _with(data: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    inner = data.get(path[0], {}) if len(path) > 1 else None
    new = value if len(path) == 1 else _with(inner if isinstance(inner, dict) else {}, path[1:], value)
    return {**data, path[0]: new}


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the keys of `more`, tables merged key by key."""
    both = dict(base)
    for key, value in more.items():
        old = both.get(key)
        both[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return both


def prove(text: str, meaning: Mapping[str, Any], where: str, path: tuple[str, ...]) -> None:
    """Raise InvalidInput unless `text` has this meaning."""
    try:
        proved = _same(_loads(text), dict(meaning))
    except tomllib.TOMLDecodeError:
        proved = False
    if not proved:
        raise refused(where, path)


def _same(a: Any, b: Any) -> bool:
    """Return whether two parsed values are equal; unlike `==` it tells 1 from 1.0 and from true, and takes nan for
    nan.
    """
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b) or repr(a) == repr(b)


def refused(where: str, path: Sequence[str]) -> InvalidInput:
    return InvalidInput(
        f"{'.'.join(path)} is written in a way that cannot be edited safely",
        where=where,
        cure="write it as a table of its own ([table] and key = value lines); nothing was changed",
    )
