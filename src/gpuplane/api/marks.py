"""What a type annotation cannot say and a schema must: enumerations, patterns, list keys, CEL rules.

Marks go into `Annotated[...]`, rules into the class attribute `RULES`. They bind the API server and `gpuplane check`,
not decoding: a value from a newer release must never make an object look absent to its controller.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Rule(msgspec.Struct, frozen=True):
    """A CEL rule of a schema, what it means to people, and its code in `gpuplane check`."""

    rule: str
    message: str
    code: str


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
