"""JSONPath as `additionalPrinterColumns` use it: `.status.conditions[?(@.type=="Ready")].status`.

Only what Kubernetes allows there: child names (plain, quoted, with escaped dots), indexes, slices, wildcards, recursive
descent and one-comparison filters. A path is compiled once for a CRD and then applied to every row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Step = Callable[[Any], Iterator[Any]]

_NAME = re.compile(r"(?:[^.\[\]\\\s]|\\.)+")
_FILTER = re.compile(r"\?\(\s*@((?:[.\[][^=!<>]*?)?)\s*(?:(==|!=|<=|>=|<|>)\s*(.+?))?\s*\)$")
_SLICE = re.compile(r"(-?\d*):(-?\d*)(?::(-?\d+))?$")


class JSONPath:
    """A compiled path. `find` yields every match; `first` is what a printer column shows."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._steps = list(_compile(path))

    def find(self, data: Any) -> list[Any]:
        values: list[Any] = [data]
        for step in self._steps:
            values = [found for value in values for found in step(value)]
        return values

    def first(self, data: Any) -> Any:
        found = self.find(data)
        return found[0] if found else None


def _compile(path: str) -> Iterator[Step]:
    """Raises ValueError with the offending rest of the path."""
    rest = path.strip()
    if rest.startswith("{") and rest.endswith("}"):
        rest = rest[1:-1]
    rest = rest.removeprefix("$")
    while rest:
        if rest.startswith(".."):
            yield _descend
            rest = rest[2:]
            if not rest.startswith("["):
                rest = "." + rest
        elif rest.startswith("["):
            end = _closing(rest)
            yield _bracket(rest[1:end].strip())
            rest = rest[end + 1 :]
        else:
            match = _NAME.match(rest.removeprefix("."))
            if rest in (".", "") or match is None:
                if rest == ".":
                    return
                raise ValueError(f"cannot read the JSONPath {path!r} at {rest!r}")
            name = match.group().replace("\\", "")
            yield _wildcard if name == "*" else _child(name)
            rest = rest.removeprefix(".")[match.end() :]


def _closing(text: str) -> int:
    quote = ""
    depth = 0
    for index, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
            if not depth:
                return index
    raise ValueError(f"unterminated '[' in the JSONPath at {text!r}")


def _bracket(inner: str) -> Step:
    if inner == "*":
        return _wildcard
    if len(inner) > 1 and inner[0] in "'\"" and inner[-1] == inner[0]:
        return _child(inner[1:-1])
    if re.fullmatch(r"-?\d+", inner):
        return _index(int(inner))
    if match := _SLICE.match(inner):
        start, stop, step = (int(part) if part else None for part in match.groups())
        return lambda value: iter(value[start:stop:step] if isinstance(value, list) else ())
    if match := _FILTER.match(inner):
        return _filter(JSONPath(match[1]), match[2], match[3])
    raise ValueError(f"cannot read the JSONPath part [{inner}]")


def _child(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, dict) and name in value:
            yield value[name]

    return step


def _index(index: int) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and -len(value) <= index < len(value):
            yield value[index]

    return step


def _wildcard(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _descend(value: Any) -> Iterator[Any]:
    yield value
    for child in _wildcard(value):
        yield from _descend(child)


def _filter(path: JSONPath, operator: str | None, literal: str | None) -> Step:
    wanted = _literal(literal) if literal is not None else None
    holds: dict[str, Callable[[Any], bool]] = {
        "==": lambda found: bool(found == wanted),
        "!=": lambda found: bool(found != wanted),
        "<": lambda found: bool(found < wanted),
        "<=": lambda found: bool(found <= wanted),
        ">": lambda found: bool(found > wanted),
        ">=": lambda found: bool(found >= wanted),
    }

    def matches(item: Any) -> bool:
        found = path.find(item)
        if operator is None:
            return bool(found)
        try:
            return bool(found) and holds[operator](found[0])
        except TypeError:  # "a" < 1: other types are never in order
            return False

    def step(value: Any) -> Iterator[Any]:
        return (item for item in _items(value) if matches(item))

    return step


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else ()


def _literal(text: str) -> Any:
    if text[0] in "'\"" and text[-1] == text[0]:
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text
