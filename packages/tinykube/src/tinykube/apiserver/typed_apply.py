"""Checks of a configuration that is applied, before it meets the stored object: fields and items that it cannot have.

A real server reads an applied configuration by the schema of its kind and answers 500 where that fails, whatever
`fieldValidation` says: only fields that exist can have an owner.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.fieldset import item_key, paths
from tinykube.apiserver.schema import Schema

Object = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_STEP: Final = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def typed_configuration(
    config: Object, namespace: str, prune: Callable[[Object], Sequence[str]], schema: Schema
) -> Object:
    """Return an applied configuration in the types of its kind. Empty maps and lists stay: they are owned.

    `prune` changes an object to these types and returns the paths of unknown fields. The function owns `config`.
    `namespace` is that of the body, which may be empty. Raises ApiFailure 500 as `check_applied`.
    """
    raw = _encode(config)
    # NB: text may hold these bytes too, which costs time only. Most configurations have nothing empty.
    typed = _decode(raw) if b"{}" in raw or b"[]" in raw else config
    unknown = prune(typed)
    if unknown or b"[" in raw:
        check_applied(config, namespace, unknown, schema)
    if typed is not config:
        _restore(typed, config)
    return typed


def check_applied(config: Object, namespace: str, unknown: Iterable[str], schema: Schema) -> None:
    """Raise ApiFailure 500 for unknown fields (paths such as `spec.foo`) and for items of a list with the same keys.

    `namespace` is that of the body, which may be empty.
    """
    problems = [f"{_typed(config, path, schema)}: field not declared in schema" for path in unknown]
    problems += _repeated_items(config, schema, "")
    if not problems:
        return
    text = problems[0] if len(problems) == 1 else "errors:" + "".join(f"\n  {problem}" for problem in problems)
    group, _, version = config["apiVersion"].rpartition("/")
    what = f"{namespace}/{config['metadata'].get('name', '')}; {group}/{version}, Kind={config['kind']}"
    raise ApiFailure(500, "", f"failed to create typed patch object ({what}): {text}")


def _typed(config: Any, path: str, schema: Schema) -> str:
    """Return a path with the keys of items in the place of their positions: `.containers[name="a"].image`."""
    value, shown = config, ""
    for name, index in _STEP.findall(path):
        if name:
            shown += f".{name}"
            value = value.get(name) if isinstance(value, dict) else None
            schema = schema.child(name)
        else:
            value = value[int(index)] if isinstance(value, list) and int(index) < len(value) else None
            shown += next(paths({item_key(value, schema): {}})) if schema.list_type == "map" else f"[{index}]"
            schema = schema.item()
    return shown


def _repeated_items(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if isinstance(inner, (dict, list)):
                yield from _repeated_items(inner, schema.child(name), f"{path}.{name}")
    elif isinstance(value, list) and schema.list_type in ("map", "set"):
        seen: set[str] = set()
        for item in value:
            key = item_key(item, schema)
            shown = next(paths({key: {}}))
            if key in seen:
                yield f"{path}: duplicate entries for key {shown}"
            seen.add(key)
            yield from _repeated_items(item, schema.item(), path + shown)


def _restore(typed: Any, config: Any) -> None:
    """Put the empty maps and lists of `config` back that pruning took away from its copy `typed`."""
    if isinstance(typed, dict) and isinstance(config, dict):
        for name, value in config.items():
            if name in typed:
                _restore(typed[name], value)
            elif value in ({}, []):
                typed[name] = value
    elif isinstance(typed, list) and isinstance(config, list):
        for inner, given in zip(typed, config, strict=True):
            _restore(inner, given)
