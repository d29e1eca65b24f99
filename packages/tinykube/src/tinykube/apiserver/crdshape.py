"""The fields of a CustomResourceDefinition and their types, so that what follows may rely on them.

Built-in kinds have their table (`fields.txt`); a CRD's schema nests in itself and has fields of two types, which that
table cannot say. As there, unknown fields are dropped and told, nulls go, and a wrong type is a 400 at once.
"""

from __future__ import annotations

from typing import Any, Final

from tinykube.apiserver.failure import bad_request

Object = dict[str, Any]

# shape -> {field: type}. Types: s string, b boolean, i integer, n number, * anything, a shape, [T] list, {T} map.
# `Items` is a schema or a list of them, `OrBool` a schema or a boolean.
_SHAPES: Final[dict[str, dict[str, str]]] = {
    "CustomResourceDefinition": {"apiVersion": "s", "kind": "s", "metadata": "*", "spec": "Spec", "status": "Status"},
    "Spec": {
        "group": "s", "names": "Names", "scope": "s", "versions": "[Version]", "conversion": "Conversion",
        "preserveUnknownFields": "b",
    },
    "Status": {
        "conditions": "[Condition]", "acceptedNames": "Names", "storedVersions": "[s]", "observedGeneration": "i",
    },
    "Condition": {
        "type": "s", "status": "s", "reason": "s", "message": "s", "lastTransitionTime": "s", "observedGeneration": "i",
    },
    "Names": {"plural": "s", "singular": "s", "shortNames": "[s]", "kind": "s", "listKind": "s", "categories": "[s]"},
    "Conversion": {"strategy": "s", "webhook": "*"},
    "Version": {
        "name": "s", "served": "b", "storage": "b", "deprecated": "b", "deprecationWarning": "s",
        "schema": "Validation",
        "subresources": "Subresources", "additionalPrinterColumns": "[Column]", "selectableFields": "[Selectable]",
    },
    "Validation": {"openAPIV3Schema": "Schema"},
    "Subresources": {"status": "Empty", "scale": "Scale"},
    "Empty": {},
    "Scale": {"specReplicasPath": "s", "statusReplicasPath": "s", "labelSelectorPath": "s"},
    "Column": {"name": "s", "type": "s", "format": "s", "description": "s", "priority": "i", "jsonPath": "s"},
    "Selectable": {"jsonPath": "s"},
    "Rule": {
        "rule": "s", "message": "s", "messageExpression": "s", "reason": "s", "fieldPath": "s", "optionalOldSelf": "b",
    },
    "Schema": {
        **dict.fromkeys(("id", "$schema", "$ref", "description", "type", "format", "title", "pattern"), "s"),
        **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "uniqueItems", "nullable"), "b"),
        **dict.fromkeys(("maximum", "minimum", "multipleOf"), "n"),
        **dict.fromkeys(
            ("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), "i"
        ),
        **dict.fromkeys(("default", "example", "externalDocs"), "*"),
        **dict.fromkeys(("allOf", "oneOf", "anyOf"), "[Schema]"),
        **dict.fromkeys(("properties", "patternProperties", "definitions"), "{Schema}"),
        **dict.fromkeys(("additionalProperties", "additionalItems"), "OrBool"),
        **dict.fromkeys(
            (
                "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource", "x-kubernetes-int-or-string",
            ), "b",
        ),
        **dict.fromkeys(("x-kubernetes-list-type", "x-kubernetes-map-type"), "s"),
        "x-kubernetes-list-map-keys": "[s]", "x-kubernetes-validations": "[Rule]",
        "enum": "[*]", "required": "[s]", "items": "Items", "not": "Schema", "dependencies": "*",
    },
}  # fmt: skip
_SCALARS: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "s": ((str,), "string"),
    "b": ((bool,), "bool"),
    "i": ((int,), "int64"),
    "n": ((int, float), "float64"),
}
_NAMES: Final = {str: "string", bool: "bool", int: "number", float: "number", dict: "object", list: "array"}


def prune(crd: Object, old: Object | None = None) -> list[str]:
    """Drops unknown fields and nulls in place; the paths of the unknown. Raises ApiFailure 400 for a wrong type."""
    unknown: list[str] = []
    _shape(crd, "CustomResourceDefinition", "", unknown)
    return unknown


def _shape(value: Any, shape: str, path: str, unknown: list[str]) -> None:
    if type(value) is not dict:
        raise _wrong(path, value, shape)
    fields = _SHAPES[shape]
    for name in tuple(value):
        where = f"{path}.{name}" if path else name
        kind = fields.get(name)
        if kind is None:
            unknown.append(where)
            del value[name]
        elif value[name] is None and kind != "*":
            del value[name]
        else:
            _value(value[name], kind, where, unknown)


def _value(value: Any, kind: str, path: str, unknown: list[str]) -> None:
    if kind == "*":
        return
    if kind in _SCALARS:
        types, name = _SCALARS[kind]
        if type(value) not in types:
            raise _wrong(path, value, name)
    elif kind == "OrBool":
        if type(value) is not bool:
            _shape(value, "Schema", path, unknown)
    elif kind == "Items":
        if type(value) is list:
            raise bad_request(f"{path}: items must be a schema object and not an array")
        _shape(value, "Schema", path, unknown)
    elif kind[0] == "[":
        if type(value) is not list:
            raise _wrong(path, value, f"[]{kind[1:-1]}")
        for index, item in enumerate(value):
            _value(item, kind[1:-1], f"{path}[{index}]", unknown)
    elif kind[0] == "{":
        if type(value) is not dict:
            raise _wrong(path, value, f"map[string]{kind[1:-1]}")
        for name, item in value.items():
            _value(item, kind[1:-1], f"{path}[{name}]", unknown)
    else:
        _shape(value, kind, path, unknown)


def _wrong(path: str, value: Any, wanted: str) -> Exception:
    kind = "CustomResourceDefinition"
    found = _NAMES.get(type(value), "null")
    return bad_request(
        f'{kind} in version "v1" cannot be handled as a {kind}: json: cannot unmarshal {found} into Go struct field '
        f".{path} of type {wanted}"
    )
