"""Schemas of built-in kinds, derived from the types and docstrings of lightkube's models.

Nothing about Kubernetes' fields is written down here, so `kubectl explain` knows as much as the installed models do.
A schema is made on first use and cached; a model module costs its import only on first use.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from tinykube.apiserver.builtin import RESOURCES
from tinykube.apiserver.fieldtable import table
from tinykube.apiserver.schema import PLAIN, builtin_schema
from tinykube.apiserver.schema import Schema as Merge

Schema = dict[str, Any]

_PACKAGE: Final = "lightkube.models"
_PLACES: Final = {
    "meta": "io.k8s.apimachinery.pkg.apis.meta.",
    "apiextensions": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.",
    "apiregistration": "io.k8s.kube-aggregator.pkg.apis.apiregistration.",
}
_SCALARS: Final[dict[str, Schema]] = {
    "str": {"type": "string"},
    "int": {"type": "integer", "format": "int64"},
    "bool": {"type": "boolean"},
    "float": {"type": "number", "format": "double"},
    "Any": {},
    "JSON": {},
    "Time": {"type": "string", "format": "date-time"},
    "MicroTime": {"type": "string", "format": "date-time"},
    "datetime": {"type": "string", "format": "date-time"},
    "Quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "IntOrString": {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
    "RawExtension": {"type": "object"},
    "FieldsV1": {"type": "object"},
    "Patch": {"type": "object"},
}
# The models write every map as `dict`; these are the ones whose values are strings.
_STRING_MAPS: Final = frozenset(
    ("annotations", "data", "labels", "matchLabels", "nodeSelector", "stringData", "volumeAttributes", "parameters")
)
_FIELD: Final = re.compile(r"^\s*\* \*\*(\w+)\*\* ``(.*?)`` - ?(.*)$")
_WRAPPER: Final = re.compile(r"(Optional|List)\[(.*)\]$")


def schema_name(module: str, kind: str) -> str:
    """`io.k8s.api.core.v1.Pod` for (`core_v1`, `Pod`)."""
    group, _, version = module.rpartition("_")
    return _PLACES.get(group, f"io.k8s.api.{group}.") + f"{version}.{kind}"


def reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


@cache
def _module(name: str) -> Any:
    return importlib.import_module(f"{_PACKAGE}.{name}")


@cache
def _merging() -> dict[tuple[str, str], Merge]:
    """Return how the lists of each model merge, by walking every built-in kind through its models and its merge
    schema.
    """
    found: dict[tuple[str, str], Merge] = {}
    todo = [((info.model, info.kind), builtin_schema(info.kind)) for info in RESOURCES]
    while todo:
        place, merge = todo.pop()
        if place in found or merge is PLAIN:
            continue
        found[place] = merge
        for field, annotation in _annotations(getattr(_module(place[0]), place[1])):
            child = merge.child(_wire_name(field))
            _, references = _of_annotation(place[0], field, annotation)
            todo += [(reference, child.item() if child.list_type else child) for reference in references]
    return found


def _merge_hints(merge: Merge) -> Schema:
    """Return the hints for kubectl's own merging: it computes strategic merge patches from these where it
    finds them.
    """
    if merge.list_type == "map":
        hints = {"x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": merge.keys[0]}
        return {**hints, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(merge.keys)}
    if merge.list_type == "set":
        return {"x-kubernetes-list-type": "set"} | ({"x-kubernetes-patch-strategy": "merge"} if merge.merge_set else {})
    return {}


@cache
def schema_of(module: str, kind: str) -> tuple[Schema, tuple[tuple[str, str], ...]]:
    """The schema of one model and the (module, kind) of the models it refers to."""
    model = getattr(_module(module), kind)
    summary, notes = _documentation(model)
    properties: Schema = {}
    required: list[str] = []
    merging = _merging().get((module, kind), PLAIN)
    served = table().messages.get(f"{module.rpartition('_')[0]}.{kind}")
    references: list[tuple[str, str]] = []
    for field, annotation in _annotations(model):
        name = _wire_name(field)
        if served is not None and name not in served.named and name not in ("apiVersion", "kind"):
            continue  # the models may be of a later version than what is served
        schema, found = _of_annotation(module, field, annotation)
        references += found
        note = notes.get(field, "")
        if "$ref" in schema:
            schema = {"description": note, "allOf": [schema], "default": {}}
        elif note:
            schema = {"description": note, **schema}
        properties[name] = schema | _merge_hints(merging.child(name))
        if not annotation.startswith("Optional["):
            required.append(name)
    made: Schema = {"type": "object", "description": summary, "properties": properties}
    if required:
        made["required"] = sorted(required)
    return made, tuple(dict.fromkeys(references))


def _annotations(model: Any) -> Iterator[tuple[str, str]]:
    for field, annotation in inspect.get_annotations(model).items():
        yield field, annotation if isinstance(annotation, str) else annotation.__name__


def _wire_name(field: str) -> str:
    if field in ("d_ref", "d_schema"):
        return "$" + field[2:]
    return field.replace("_", "-") if field.startswith("x_kubernetes") else field.removesuffix("_")


def _of_annotation(module: str, field: str, annotation: str) -> tuple[Schema, list[tuple[str, str]]]:
    if match := _WRAPPER.match(annotation):
        inner, found = _of_annotation(module, field, match[2])
        if match[1] == "List":
            items = {"allOf": [inner], "default": {}} if "$ref" in inner else inner
            return {"type": "array", "items": items}, found
        return inner, found
    where, _, kind = annotation.rpartition(".")
    if kind in ("dict", "Dict"):
        values: Schema = {"type": "string"} if field in _STRING_MAPS else {}
        return {"type": "object", "additionalProperties": values}, []
    if kind in _SCALARS:
        return dict(_SCALARS[kind]), []
    target = where or module
    model = getattr(_module(target), kind, None)
    if not inspect.isclass(model) or not inspect.get_annotations(model):
        return {"type": "object"}, []
    return reference(schema_name(target, kind)), [(target, kind)]


def _documentation(model: Any) -> tuple[str, dict[str, str]]:
    """The description of a model and those of its fields, from its docstring."""
    head, _, tail = inspect.cleandoc(model.__doc__ or "").partition("**parameters**")
    notes: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in tail.splitlines():
        if match := _FIELD.match(line):
            lines = notes.setdefault(match[1], [])
            lines.append(match[3])
        elif line.strip():
            lines.append(line.strip())
    return " ".join(head.split()), {field: " ".join(" ".join(text).split()) for field, text in notes.items()}


def closure(roots: Mapping[tuple[str, str], Schema]) -> dict[str, Schema]:
    """The schemas of `roots` and of all they refer to, by name; the values of `roots` are merged into theirs."""
    made: dict[str, Schema] = {}
    todo = list(roots)
    while todo:
        module, kind = todo.pop()
        name = schema_name(module, kind)
        if name in made:
            continue
        schema, references = schema_of(module, kind)
        made[name] = {**schema, **roots.get((module, kind), {})}
        todo += references
    return dict(sorted(made.items()))
