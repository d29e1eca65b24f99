"""Schemas of CustomResourceDefinitions: compiled once, and what is wrong with them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from kubekit.api.regexes import regex
from kubekit.cel import CelSyntaxError
from tinykube.apiserver.celfields import undefined_fields
from tinykube.apiserver.celrules import CelRule
from tinykube.apiserver.failure import Cause, invalid_value, not_supported, required
from tinykube.apiserver.structural import Structural

_TYPES: Final = ("array", "boolean", "integer", "number", "object", "string")


# A write looks at its definition when defaults are filled, when it is validated and when it is served, and a process
# with several API servers gets the same definitions in each: a schema is compiled once. Keyed by its JSON.
@lru_cache(maxsize=32)
def structural_schema(schema: bytes) -> Structural:
    """Return the compiled schema of a version, from its JSON."""
    return Structural(msgspec.json.decode(schema), root=True)


@lru_cache(maxsize=32)
def schema_findings(schema: bytes, path: str) -> tuple[Cause, ...]:
    """Return everything that is wrong with the schema of a version, from its JSON."""
    root = msgspec.json.decode(schema)
    found = (*_metadata_findings(root, path), *_findings(root, path))
    return found or tuple(_default_findings(root, structural_schema(schema), path))


def _findings(schema: Mapping[str, Any], path: str) -> Iterator[Cause]:
    """Return the errors of a schema: not structural, invalid patterns and rules, defaults that do not fit."""
    kind = schema.get("type", "")
    loose = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if not kind and not loose:
        yield required(f"{path}.type", "must not be empty for specified object fields")
    elif kind and kind not in _TYPES:
        yield not_supported(f"{path}.type", kind, _TYPES)
    if kind == "array" and "items" not in schema:
        yield required(f"{path}.items", "must be specified")
    if schema.get("properties") and schema.get("additionalProperties"):
        yield Cause("FieldValueForbidden", "Forbidden: additionalProperties and properties are mutual exclusive", path)
    if isinstance(schema.get("items"), list):
        text = "Forbidden: items must be a schema object and not an array"
        yield Cause("FieldValueForbidden", text, f"{path}.items")
    if schema.get("uniqueItems"):
        yield Cause("FieldValueForbidden", "Forbidden: uniqueItems cannot be set to true", f"{path}.uniqueItems")
    if schema.get("$ref"):
        yield Cause("FieldValueForbidden", "Forbidden: $ref is not supported", f"{path}.$ref")
    if schema.get("x-kubernetes-list-type") == "map" and not schema.get("x-kubernetes-list-map-keys"):
        yield required(f"{path}.x-kubernetes-list-map-keys", "must not be empty if x-kubernetes-list-type is map")
    if pattern := schema.get("pattern"):
        try:
            regex(pattern)
        except ValueError as problem:
            yield invalid_value(f"{path}.pattern", pattern, f"must be a valid regular expression, but isn't: {problem}")
    for index, rule in enumerate(schema.get("x-kubernetes-validations") or []):
        source = str(rule.get("rule", ""))
        where = f"{path}.x-kubernetes-validations[{index}].rule"
        try:
            CelRule(rule)
            problems = undefined_fields(source, schema, root=path.endswith("openAPIV3Schema"))
        except CelSyntaxError as problem:
            problems = [str(problem)]
        for text in problems:
            yield Cause("FieldValueInvalid", f"Invalid value: {_go_rule(rule)}: compilation failed: {text}", where)
    for name, child in (schema.get("properties") or {}).items():
        if isinstance(child, Mapping):
            yield from _findings(child, f"{path}.properties[{name}]")
    for field in ("additionalProperties", "items"):
        if isinstance(schema.get(field), Mapping):
            yield from _findings(schema[field], f"{path}.{field}")


def _go_rule(rule: Mapping[str, Any]) -> str:
    """A rule as Go prints its type."""
    shown = {
        "Rule": rule.get("rule", ""),
        "Message": rule.get("message", ""),
        "MessageExpression": rule.get("messageExpression", ""),
        "Reason": rule.get("reason"),
        "FieldPath": rule.get("fieldPath", ""),
        "OptionalOldSelf": rule.get("optionalOldSelf"),
    }
    text = msgspec.json.encode(shown).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _metadata_findings(root: Mapping[str, Any], path: str) -> Iterator[Cause]:
    metadata = (root.get("properties") or {}).get("metadata") or {}
    if set(metadata.get("properties") or ()) - {"name", "generateName"}:
        text = "must not specify anything other than name and generateName, but metadata is implicitly specified"
        yield Cause("FieldValueForbidden", f"Forbidden: {text}", f"{path}.properties[metadata]")


def _default_findings(schema: Mapping[str, Any], structural: Structural, path: str) -> Iterator[Cause]:
    """Defaults that do not fit where they stand; only of a schema that is otherwise right."""
    todo = [(schema, structural, path)]
    while todo:
        spec, compiled, where = todo.pop()
        if spec.get("default") is not None:
            value = copy.deepcopy(spec["default"])
            compiled.fill(value)
            for cause in compiled.check(value, ""):
                place = f"{where}.default" + (f".{cause.field}" if cause.field else "")
                yield Cause(cause.reason, cause.message.replace(": in body", ":  in body"), place)
        todo += [
            (child, compiled.properties[name], f"{where}.properties[{name}]")
            for name, child in (spec.get("properties") or {}).items()
        ]
        for field, inner in (("additionalProperties", compiled.values), ("items", compiled.items)):
            if inner is not None:
                todo.append((spec[field], inner, f"{where}.{field}"))
