"""Schema constraints that a type annotation cannot express: enumerations, patterns, list keys, CEL rules.

Marks go into `Annotated[...]`, rules into the class attribute `RULES`. They bind the API server and `gpuplane check`,
not decoding: a value from a newer release must never make an object look absent to its controller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec


class FieldRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule about several fields of an object: in CEL for the API server, as a function for `gpuplane check`.

    `holds` gets the object as plain JSON data, of which every field is right in itself. `at` is the field to point at,
    `cure` what to write. A test holds `rule` and `holds` to the same answers.
    """

    rule: str
    holds: Callable[[Mapping[str, Any]], bool]
    message: str
    code: str
    at: str = ""
    cure: str = ""


def one_of(*values: str) -> msgspec.Meta:
    """A string out of a fixed set."""
    return msgspec.Meta(extra_json_schema={"enum": list(values)})


def matching(pattern: str) -> msgspec.Meta:
    """A string that contains a match of `pattern` (RE2 syntax)."""
    return msgspec.Meta(extra_json_schema={"pattern": pattern})


def at_least(minimum: int) -> msgspec.Meta:
    return msgspec.Meta(extra_json_schema={"minimum": minimum})


def keyed_by(*fields: str) -> msgspec.Meta:
    """A list that is a map by these fields of its items: merged item by item, no key twice."""
    return msgspec.Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(fields)})


def shaped(**more: Any) -> msgspec.Meta:
    """Any other keyword of OpenAPI (`format`, `maxProperties` ...)."""
    return msgspec.Meta(extra_json_schema=more)
