"""Small edits of JSON text that leave every other byte alone, for docker's daemon.json.

As with TOML (`toml_edit`): members are inserted into or cut out of the text, in its own indentation, and every edit is
proved by parsing. JSON has no comments, so nothing can be marked; gpuplane's part is recognised by its value.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from kubekit.documents import DocumentError, check_json
from kubekit.errors import InvalidInput

_BLANK = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_SCALAR = re.compile(r"[^\s,\]}]+")


class Member(msgspec.Struct, frozen=True):
    """`"key": value` of an object; `start` is at the key's quote, the value's text is `text[value:end]`."""

    key: str
    start: int
    value: int
    end: int


def parse(text: str, where: str) -> dict[str, Any]:
    """The object that a JSON text is; an empty text is an empty object.

    Raises:
        InvalidInput: it is no JSON (with line and column), no object, or names a key twice.
    """
    if not text.strip():
        return {}

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        data = dict(pairs)
        if len(data) != len(pairs):
            twice = next(key for i, (key, _) in enumerate(pairs) if any(key == k for k, _ in pairs[:i]))
            raise InvalidInput(f'the key "{twice}" stands twice', where=where, cure="remove one; nothing was changed")
        return data

    try:
        check_json(text)
        data = json.loads(text, object_pairs_hook=unique)
    except DocumentError as error:
        place = f"{where}:{error.line}:{error.column}" if error.line else where
        cure = "repair the file; nothing was changed"
        raise InvalidInput(f"it does not parse: {error.problem}", where=place, cure=cure) from None
    except ValueError as error:
        place = f"{where}:{error.lineno}:{error.colno}" if isinstance(error, json.JSONDecodeError) else where
        raise InvalidInput(
            f"it does not parse: {error}", where=place, cure="repair the file; nothing was changed"
        ) from None
    if not isinstance(data, dict):
        raise InvalidInput("it is no JSON object", where=where, cure="repair the file; nothing was changed")
    return data


def set_value(text: str, path: tuple[str, ...], value: Any, where: str) -> str:
    """`text` with `value` at `path`; objects on the way are made.

    Raises:
        InvalidInput: the text is no JSON object, or something else than an object is on the way.
    """
    before = parse(text, where)
    if not text.strip():
        return json.dumps(_with({}, path, value, where), indent=4) + "\n"
    if _has(before, path, value):
        return text
    at = _blank(text, 0)
    for depth, key in enumerate(path):
        inside = members(text, at)
        found = next((member for member in inside if member.key == key), None)
        last = depth == len(path) - 1
        if found is None:
            rest: Any = value
            for outer in reversed(path[depth + 1 :]):
                rest = {outer: rest}
            new = _insert(text, at, inside, key, rest)
            break
        if last:
            new = text[: found.value] + json.dumps(value) + text[found.end :]
            break
        if text[found.value] != "{":
            raise InvalidInput(
                f"{'.'.join(path[: depth + 1])} is no object",
                where=place_of(text, path[: depth + 1], where),
                cure="repair it; nothing was changed",
            )
        at = found.value
    if parse(new, where) != _with(before, path, value, where):
        raise InvalidInput(f"{'.'.join(path)} cannot be set safely", where=where, cure="format the file with jq")
    return new


def remove(text: str, path: tuple[str, ...], where: str) -> str:
    """`text` without the member at `path`, which has to be there."""
    before = parse(text, where)
    at = _blank(text, 0)
    for key in path[:-1]:
        at = next(member.value for member in members(text, at) if member.key == key)
    inside = members(text, at)
    index = next(i for i, member in enumerate(inside) if member.key == path[-1])
    if index:
        new = text[: inside[index - 1].end] + text[inside[index].end :]
    elif len(inside) > 1:
        new = text[: inside[0].start] + text[inside[1].start :]
    else:
        close = _blank(text, inside[0].end)
        new = text[: at + 1] + text[close:]
    if parse(new, where) != _without(before, path):
        raise InvalidInput(f"{'.'.join(path)} cannot be removed safely", where=where, cure="format the file with jq")
    return new


def place_of(text: str, path: tuple[str, ...], where: str) -> str:
    """`where` with line and column of the value at `path`, of a text that parses."""
    at = _blank(text, 0)
    for key in path:
        found = next((member for member in members(text, at) if member.key == key), None)
        if found is None:
            return where
        at = found.value
        if text[at] != "{":
            break
    line = text.rfind("\n", 0, at) + 1
    return f"{where}:{text.count(chr(10), 0, at) + 1}:{at - line + 1}"


def members(text: str, at: int) -> list[Member]:
    """The members of the object that begins at `at`, of a text that parses."""
    found = []
    at = _blank(text, at + 1)
    while text[at] != "}":
        start = at
        end = _value_end(text, at)
        key = json.loads(text[at:end])
        at = _blank(text, _blank(text, end) + 1)
        end = _value_end(text, at)
        found.append(Member(key, start, at, end))
        at = _blank(text, end)
        if text[at] == ",":
            at = _blank(text, at + 1)
    return found


def _insert(text: str, at: int, inside: list[Member], key: str, value: Any) -> str:
    """A new member at the end of the object at `at`, laid out as its neighbours are."""
    if inside:
        before = text[_blank_before(text, inside[-1].start) : inside[-1].start]
        if "\n" not in before:
            return f"{text[: inside[-1].end]}, {json.dumps(key)}: {json.dumps(value)}{text[inside[-1].end :]}"
        indent = before.rpartition("\n")[2]
        new = f",{_newline(text)}{indent}{_laid_out(text, key, value, indent)}"
        return text[: inside[-1].end] + new + text[inside[-1].end :]
    line = text.rfind("\n", 0, at) + 1
    outer = text[line : line + len(text[line:]) - len(text[line:].lstrip(" \t"))]
    indent = outer + _step(text)
    close = _blank(text, at + 1)
    newline = _newline(text)
    new = f"{newline}{indent}{_laid_out(text, key, value, indent)}{newline}{outer}"
    return text[: at + 1] + new + text[close:]


def _laid_out(text: str, key: str, value: Any, indent: str) -> str:
    lines = json.dumps({key: value}, indent=_step(text)).splitlines()[1:-1]
    step = len(_step(text))
    return (_newline(text) + indent).join(line[step:] for line in lines)


def _step(text: str) -> str:
    """One level of the file's indentation: that of its first indented line."""
    match = re.search(r"\n([ \t]+)\S", text)
    return match.group(1) if match else "    "


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _blank(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    assert match is not None, "it matches the empty string too"
    return match.end()


def _blank_before(text: str, at: int) -> int:
    while at and text[at - 1] in " \t\r\n":
        at -= 1
    return at


def _value_end(text: str, at: int) -> int:
    if text[at] in "{[":
        closing = "}" if text[at] == "{" else "]"
        at += 1
        while text[at] != closing:
            at = _value_end(text, at) if text[at] in '{["' else at + 1
        return at + 1
    match = (_STRING if text[at] == '"' else _SCALAR).match(text, at)
    assert match is not None, "the text parses"
    return match.end()


def _has(data: Any, path: tuple[str, ...], value: Any) -> bool:
    for key in path:
        if not isinstance(data, dict) or key not in data:
            return False
        data = data[key]
    return json.dumps(data) == json.dumps(value)


def _with(data: Any, path: tuple[str, ...], value: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise InvalidInput(f"{path[0]} can only be set in an object", where=where, cure="repair it")
    new = value if len(path) == 1 else _with(data.get(path[0], {}), path[1:], value, where)
    return {**data, path[0]: new}


def _without(data: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    if len(path) == 1:
        return {key: value for key, value in data.items() if key != path[0]}
    return {**data, path[0]: _without(data[path[0]], path[1:])}
