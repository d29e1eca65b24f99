"""Fills in fields that are missing: the step of all defaults."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def fill(target: Object, **values: Any) -> None:
    for key, value in values.items():
        if target.get(key) is None:
            target[key] = value


def fill_status(obj: Object, **counts: int) -> None:
    """Counts that a status always has."""
    fill(obj, status={})
    fill(obj["status"], **counts)


def spec_of(obj: Object) -> Object:
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        spec = obj["spec"] = {}
    return spec
