"""Structural schemas written by hand, for kinds that others have defined and gpuplane serves by the same rules.

gpuplane's own kinds get their schemas from Structs (`gpuplane.api.schema`). Of other projects' kinds the Structs hold
only the fields that gpuplane reads; the API server must admit and refuse the same objects as theirs.

Invariant: each call returns fresh dicts, so that no two definitions share one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kubekit.api import quantity

Schema = dict[str, Any]


def text(about: str, **more: Any) -> Schema:
    return {"description": about, "type": "string", **more}


def whole(about: str, minimum: int | None = None, maximum: int | None = None, **more: Any) -> Schema:
    bounds = {"minimum": minimum, "maximum": maximum}
    kept = {name: bound for name, bound in bounds.items() if bound is not None}
    return {"description": about, "type": "integer", **kept, **more}


def flag(about: str, **more: Any) -> Schema:
    return {"description": about, "type": "boolean", **more}


def amount(about: str) -> Schema:
    """A quantity: a number, or a text such as 500m or 5Gi."""
    return {
        "description": about,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": quantity.PATTERN,
        "x-kubernetes-int-or-string": True,
    }


def rule(cel: str, message: str) -> tuple[str, str]:
    return cel, message


def group(
    about: str,
    fields: Mapping[str, Schema],
    required: Iterable[str] = (),
    rules: Iterable[tuple[str, str]] = (),
    **more: Any,
) -> Schema:
    made: Schema = {"description": about, "type": "object", "properties": dict(fields), **more}
    if names := list(required):
        made["required"] = names
    return made | _rules(rules)


def entries(about: str, item: Schema, rules: Iterable[tuple[str, str]] = (), **more: Any) -> Schema:
    """A list that is written as a whole."""
    made = {"description": about, "type": "array", "items": item, "x-kubernetes-list-type": "atomic", **more}
    return made | _rules(rules)


def pairs(about: str, value: Schema | None = None, rules: Iterable[tuple[str, str]] = (), **more: Any) -> Schema:
    """A map of texts, or of `value`."""
    made = {"description": about, "type": "object", "additionalProperties": value or {"type": "string"}, **more}
    return made | _rules(rules)


def amounts(about: str) -> Schema:
    """A map of quantities by resource."""
    return pairs(about, {key: part for key, part in amount("").items() if key != "description"})


def conditions() -> Schema:
    fields = {
        "type": text("kind of condition"),
        "status": text("True, False or Unknown", enum=["True", "False", "Unknown"]),
        "reason": text("why, in one word"),
        "message": text("why, for people"),
        "lastTransitionTime": text("when the status changed", format="date-time"),
        "observedGeneration": whole("generation of the object that the condition is about", 0),
    }
    return entries("the object's conditions", group("one condition", fields, ("type", "status")))


def _rules(rules: Iterable[tuple[str, str]]) -> Schema:
    made = [{"rule": cel, "message": message} for cel, message in rules]
    return {"x-kubernetes-validations": made} if made else {}
