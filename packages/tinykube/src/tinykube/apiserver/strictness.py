"""Fields that a body has twice, and the findings of `fieldValidation`: a decoder takes the last and forgets the others.

Finding them takes a slow reader of JSON. A body whose value has as many bytes, or as many fields, when it is encoded
again has no field twice, so that the slow reader sees few bodies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import yaml

from kubekit.yaml_documents import PlainLoader

_encode = msgspec.json.Encoder().encode


class RepeatedFields(msgspec.Struct, frozen=True):
    """The paths of the fields that a document has again, in its order, and the place of the first of each path."""

    paths: tuple[tuple[int, str], ...]
    places: dict[str, int]
    lines: tuple[str, ...] = ()  # what a reader of YAML says of them


class _Pairs(list[tuple[str, Any]]):
    """An object with the fields that it has twice."""


def repeated_in_json(data: bytes, value: Any) -> RepeatedFields | None:
    """Return the repeated fields of a valid JSON document whose value is `value`; None: there are none."""
    again = _encode(value)
    # NB: `":` in a text counts on both sides.
    if len(again) >= len(data.rstrip()) or (again.count(b'":') == data.count(b'":') and b'" :' not in data):
        return None
    places: dict[str, int] = {}
    paths: list[tuple[int, str]] = []
    for place, path in enumerate(_fields(json.loads(data, object_pairs_hook=_Pairs), "")):
        if path in places:
            paths.append((place, path))
        else:
            places[path] = place
    return RepeatedFields(tuple(paths), places) if paths else None


def _fields(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, _Pairs):
        seen: set[str] = set()
        for name, inner in value:
            where = f"{path}.{name}" if path else name
            yield where
            if name not in seen:
                yield from _fields(inner, where)
            seen.add(name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _fields(inner, f"{path}[{index}]")


def repeated_in_yaml(data: bytes) -> RepeatedFields | None:
    """Return the repeated fields of a valid YAML document, which has its lines; None: there are none."""
    lines = tuple(
        f'line {line}: key "{key}" already set in map' for line, key in _again(yaml.compose(data, PlainLoader))
    )
    return RepeatedFields((), {}, lines) if lines else None


def _again(node: Any) -> Iterator[tuple[int, str]]:
    todo, looked_at = [node], set()
    while todo:
        node = todo.pop()
        if id(node) in looked_at:
            continue
        looked_at.add(id(node))
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, inner in node.value:
                if key.value in seen:
                    yield key.start_mark.line + 1, str(key.value)
                if isinstance(key.value, str):
                    seen.add(key.value)
                todo.append(inner)
        elif isinstance(node, yaml.SequenceNode):
            todo += node.value


def strict_findings(unknown: Sequence[str], repeated: RepeatedFields | None, *, custom: bool) -> list[str]:
    """Return a message for each unknown and each repeated field, in the order of a real server.

    Built-in kinds are read field by field, so their findings come in the order of the document, and an unknown field is
    not also repeated. Those of custom kinds are read as a whole first.
    """
    if repeated is None:
        return [_unknown(path) for path in (sorted(unknown) if custom else unknown)]
    if repeated.lines:
        text = "yaml: unmarshal errors:\n  " + "\n  ".join(repeated.lines)
        return [text, *(_unknown(path) for path in sorted(unknown))]
    if custom:
        return [*(_again_text(path) for _, path in repeated.paths), *(_unknown(path) for path in sorted(unknown))]
    last = len(repeated.places) + len(repeated.paths)
    found = [(repeated.places.get(path, last), _unknown(path)) for path in unknown]
    found += [(place, _again_text(path)) for place, path in repeated.paths if not _below_any(path, unknown)]
    return list(dict.fromkeys(text for _, text in sorted(found)))


def _below_any(path: str, unknown: Iterable[str]) -> bool:
    return any(path == other or path.startswith((f"{other}.", f"{other}[")) for other in unknown)


def _unknown(path: str) -> str:
    return f'unknown field "{path}"'


def _again_text(path: str) -> str:
    return f'duplicate field "{path}"'
