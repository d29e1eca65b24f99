"""From Structs to the structural OpenAPI v3 schemas that CustomResourceDefinitions want.

Structural means: references inlined, every place with its type, no unions but int-or-string (see "Structural schemas"
in the Kubernetes documentation of custom resources). `gpuplane.api.marks` adds what a Struct cannot express; texts
come from docstrings: the docstring for an object, its section "Fields:" for the fields.

Invariant: the schema admits exactly what decodes (a test generates values and tries both).
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect as types

from gpuplane.api.marks import FieldRule
from kubekit.api import quantity

Schema = dict[str, Any]


def schema_of(kind: type[Any], *, defaults: bool = True) -> Schema:
    """The structural schema of a Struct. `defaults`: whether the API server shall fill in what is left out."""
    return _struct(types.type_info(kind), defaults)


def _struct(info: types.Type, defaults: bool) -> Schema:
    assert isinstance(info, types.StructType)
    notes = field_notes(info.cls)
    properties: Schema = {}
    required = []
    for field in info.fields:
        schema = _type(field.type, defaults)
        if note := notes.get(field.name):
            schema = {"description": note, **schema}
        if field.required:
            required.append(field.encode_name)
        elif defaults:
            value = _default(field)
            if value is not None:
                schema["default"] = value
        properties[field.encode_name] = schema
    result: Schema = {"type": "object", "properties": properties}
    if description := summary(info.cls):
        result = {"description": description, **result}
    if required:
        result["required"] = required
    if rules := getattr(info.cls, "RULES", ()):
        result["x-kubernetes-validations"] = [{"rule": rule.rule, "message": rule.message} for rule in rules]
    return result


def _default(field: types.Field) -> Any:
    """The default to publish: scalars that say something, and `{}` where something below has one."""
    value = field.default if field.default is not msgspec.NODEFAULT else None
    if isinstance(value, msgspec.Struct):
        inner = _unwrap(field.type)
        has_some = isinstance(inner, types.StructType) and any(_default(f) is not None for f in inner.fields)
        return {} if has_some else None
    if isinstance(value, (bool, int, float)):
        return value
    return value or None if isinstance(value, str) else None


def _unwrap(info: types.Type) -> types.Type:
    return _unwrap(info.type) if isinstance(info, types.Metadata) else info


def _type(info: types.Type, defaults: bool) -> Schema:
    match info:
        case types.Metadata():
            return {**_type(info.type, defaults), **(info.extra_json_schema or {})}
        case types.StructType():
            return _struct(info, defaults)
        case types.BoolType():
            return {"type": "boolean"}
        case types.IntType():
            return {"type": "integer"}
        case types.FloatType():
            return {"type": "number"}
        case types.StrType():
            return {"type": "string"}
        case types.EnumType():
            return {"type": "string", "enum": [member.value for member in info.cls]}
        case types.VarTupleType() | types.ListType():
            return {"type": "array", "items": _type(info.item_type, defaults), "x-kubernetes-list-type": "atomic"}
        case types.DictType(value_type=types.AnyType()):
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        case types.DictType():
            return {"type": "object", "additionalProperties": _type(info.value_type, defaults)}
        case types.UnionType():
            return _union(info, defaults)
    raise TypeError(f"{info} has no place in a structural schema")


def _union(info: types.UnionType, defaults: bool) -> Schema:
    parts = [part for part in info.types if not isinstance(part, types.NoneType)]
    nullable = len(parts) < len(info.types)
    kinds = {type(_unwrap(part)) for part in parts}
    if len(parts) == 1:
        schema = _type(parts[0], defaults)
    elif kinds <= {types.IntType, types.StrType, types.FloatType} and types.StrType in kinds:
        # Structural schemas know no number-or-string; JSON numbers with a fraction are written as strings there.
        schema = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
        if types.FloatType in kinds:
            schema["pattern"] = quantity.PATTERN
    else:
        raise TypeError(f"{info} has no place in a structural schema")
    return {**schema, "nullable": True} if nullable else schema


def rules_of(kind: type[Any]) -> dict[str, FieldRule]:
    """Every rule in the schema of a Struct, by its CEL text."""
    return {rule.rule: rule for rule in _rules(types.type_info(kind))}


def _rules(info: types.Type) -> Iterator[FieldRule]:
    match info:
        case types.Metadata():
            yield from _rules(info.type)
        case types.StructType():
            yield from getattr(info.cls, "RULES", ())
            for field in info.fields:
                yield from _rules(field.type)
        case types.VarTupleType() | types.ListType():
            yield from _rules(info.item_type)
        case types.DictType():
            yield from _rules(info.value_type)
        case types.UnionType():
            for part in info.types:
                yield from _rules(part)


# -- descriptions ------------------------------------------------------------------------------------------------------


def summary(kind: type[Any]) -> str:
    """A class's own docstring without its section "Fields:", as one paragraph a paragraph."""
    text = kind.__dict__.get("__doc__")
    if not text:
        return ""
    body = inspect.cleandoc(text).partition("\nFields:\n")[0]
    paragraphs = [" ".join(part.split()) for part in body.split("\n\n")]
    return "\n".join(part for part in paragraphs if part)


@cache
def field_notes(kind: type[Any]) -> dict[str, str]:
    """Python name -> description, from the sections "Fields:" of a class and of its bases."""
    notes: dict[str, str] = {}
    for cls in reversed(kind.__mro__):
        _, found, section = inspect.cleandoc(cls.__dict__.get("__doc__") or "").partition("\nFields:\n")
        if not found:
            continue
        name = ""
        for line in textwrap.dedent(section).splitlines():
            if line and not line[0].isspace():
                names, _, note = line.partition(": ")
                name = names
                notes |= {part.strip(): note.strip() for part in name.split(",")}
            elif line.strip():
                notes |= {part.strip(): f"{notes[part.strip()]} {line.strip()}" for part in name.split(",")}
    return notes


# -- definitions -------------------------------------------------------------------------------------------------------


class PrinterColumn(msgspec.Struct, frozen=True):
    """A column of `kubectl get`; `wide` ones come with -o wide only."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False

    def schema(self) -> Schema:
        more = {"priority": 1} if self.wide else {}
        return {"name": self.name, "type": self.type, "jsonPath": self.path, **more}


class ServedKind(msgspec.Struct, frozen=True):
    """The serving of a kind beyond its schema.

    `schema` makes the schema of a kind whose Struct has only the fields that are read. `scale` are the paths of the
    replicas that are wanted and that are there.
    """

    kind: type[Any]
    singular: str
    schema: Callable[[], Schema] | None = None
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    columns: tuple[PrinterColumn, ...] = ()
    status_subresource: bool = False
    scale: tuple[str, str] | None = None
    defaults: bool = True


OURS: Final = {"app.kubernetes.io/part-of": "gpuplane"}
"""On our definitions: kinds that other projects have too may have been defined by them before."""


def definition(served: ServedKind) -> Schema:
    """The CustomResourceDefinition of a kind."""
    resource = served.kind.RESOURCE
    schema = served.schema() if served.schema is not None else schema_of(served.kind, defaults=served.defaults)
    properties = schema["properties"]
    properties["apiVersion"] = {"type": "string"}
    properties["kind"] = {"type": "string"}
    properties["metadata"] = {"type": "object"}
    if properties.get("status", {}).get("default") is not None:
        del properties["status"]["default"]
    version: Schema = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": [column.schema() for column in served.columns],
    }
    if served.status_subresource:
        version["subresources"] = {"status": {}}
    if served.scale is not None:
        wanted, there = served.scale
        version["subresources"] = {
            **version.get("subresources", {}),
            "scale": {"specReplicasPath": wanted, "statusReplicasPath": there},
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}", "labels": dict(OURS)},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": served.singular,
                **({"shortNames": list(served.short_names)} if served.short_names else {}),
                **({"categories": list(served.categories)} if served.categories else {}),
            },
            "versions": [version],
        },
    }
