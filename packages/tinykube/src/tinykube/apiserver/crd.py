"""CustomResourceDefinitions: what a CRD must say, and what it makes the server serve.

Pure: a CRD goes in, its conditions and the kinds it serves come out. `extensions.py` carries that out when a CRD is
written. Versions do not convert (`conversion: None` semantics: only apiVersion differs).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from kubekit.api.formats import valid_format
from kubekit.api.regexes import regex
from kubekit.cel import CelSyntaxError
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.celfields import undefined_fields
from tinykube.apiserver.celrules import CelRule
from tinykube.apiserver.failure import Cause, duplicate, invalid_value, not_supported, required
from tinykube.apiserver.hooks import KindRules, Object, ScalePaths
from tinykube.apiserver.jsonpath import JSONPath
from tinykube.apiserver.printers import Printer
from tinykube.apiserver.schema import openapi_schema
from tinykube.apiserver.structural import Structural
from tinykube.apiserver.tables import crd_printer

_TYPES: Final = ("array", "boolean", "integer", "number", "object", "string")
_COLUMN_TYPES: Final = ("boolean", "date", "integer", "number", "string")


# In the order in which a real server lists those of custom resources.
_VERBS: Final = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")


class ServedVersion(msgspec.Struct, frozen=True):
    """One version of a custom resource, ready to be served. `schema` is the CRD's own, for OpenAPI."""

    info: ResourceInfo
    rules: KindRules
    printer: Printer
    schema: Object
    storage: bool


def fill_defaults(crd: Object) -> None:
    """The defaults of a CRD, in place."""
    spec = crd.setdefault("spec", {})
    names = spec.setdefault("names", {})
    kind = names.get("kind", "")
    if kind:
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", kind + "List")
    spec.setdefault("conversion", {"strategy": "None"})


# -- what a CRD must say -----------------------------------------------------------------------------------------
def findings(crd: Object, old: Object | None = None) -> list[Cause]:
    """Everything that is wrong with a CRD."""
    return list(_spec_findings(crd, old))


def _spec_findings(crd: Object, old: Object | None) -> Iterator[Cause]:
    spec = crd.get("spec") or {}
    names = spec.get("names") or {}
    name = crd["metadata"].get("name", "")
    group = spec.get("group", "")
    if not group:
        yield required("spec.group")
    elif not valid_format("dns1123Subdomain", group) or "." not in group:
        yield invalid_value("spec.group", group, "should be a domain with at least one dot")
    for field in ("plural", "kind"):
        if not names.get(field):
            yield required(f"spec.names.{field}")
    for field in ("plural", "singular", "listKind", "kind"):
        value = names.get(field)
        if value and not valid_format("dns1035Label", value.lower()):
            yield invalid_value(f"spec.names.{field}", value, "a DNS-1035 label is wanted, in its mixed-case form")
    if names.get("plural") and group and name != f"{names['plural']}.{group}":
        yield invalid_value("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
    scope = spec.get("scope", "")
    if not scope:
        yield required("spec.scope")
    elif scope not in ("Cluster", "Namespaced"):
        yield not_supported("spec.scope", scope, ("Cluster", "Namespaced"))
    if old is not None and spec.get("scope") != old["spec"].get("scope") and established(old):
        yield invalid_value("spec.scope", scope, "field is immutable")
    strategy = (spec.get("conversion") or {}).get("strategy", "None")
    if strategy != "None":
        yield not_supported("spec.conversion.strategy", strategy, ("None",))
    yield from _version_findings(crd, spec.get("versions") or [])


def established(crd: Object) -> bool:
    """Return whether its names were accepted, so that it is served."""
    conditions = (crd.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Established" and c.get("status") == "True" for c in conditions)


def storage_version(crd: Object) -> str:
    """The apiVersion that objects are stored in."""
    name = next(v["name"] for v in crd["spec"]["versions"] if v.get("storage"))
    return f"{crd['spec']['group']}/{name}"


def _version_findings(crd: Object, versions: Sequence[Mapping[str, Any]]) -> Iterator[Cause]:
    stored = [v for v in versions if v.get("storage")]
    if len(stored) != 1:
        yield Cause(
            "FieldValueInvalid",
            f"Invalid value: {len(stored)}: must have exactly one version marked as storage version",
            "spec.versions",
        )
    seen: set[str] = set()
    for index, version in enumerate(versions):
        path = f"spec.versions[{index}]"
        name = version.get("name", "")
        if not name:
            yield required(f"{path}.name")
        elif name in seen:
            yield duplicate(f"{path}.name", name)
        elif not valid_format("dns1035Label", name):
            yield invalid_value(f"{path}.name", name, "a DNS-1035 label is wanted")
        seen.add(name)
        root = (version.get("schema") or {}).get("openAPIV3Schema")
        if root is None:
            yield required(f"{path}.schema.openAPIV3Schema", "schemas are required")
        else:
            if root.get("type") != "object":
                yield invalid_value(
                    f"{path}.schema.openAPIV3Schema.type", root.get("type", ""), "must be object at the root"
                )
            yield from _root_findings(msgspec.json.encode(root), f"{path}.schema.openAPIV3Schema")
        for at, column in enumerate(version.get("additionalPrinterColumns") or []):
            yield from _column_findings(column, f"{path}.additionalPrinterColumns[{at}]")
    gone = set((crd.get("status") or {}).get("storedVersions") or ()) - seen
    for at, name in enumerate(sorted(gone)):
        text = "missing from spec.versions; must remain in spec.versions until a migration has removed it from storage"
        yield invalid_value(f"status.storedVersions[{at}]", name, text)


# A write looks at its definition when defaults are filled, when it is validated and when it is served, and a process
# with several API servers gets the same definitions in each: a schema is compiled once. Keyed by its JSON.
@lru_cache(maxsize=32)
def _structural(schema: bytes) -> Structural:
    return Structural(msgspec.json.decode(schema), root=True)


@lru_cache(maxsize=32)
def _root_findings(schema: bytes, path: str) -> tuple[Cause, ...]:
    root = msgspec.json.decode(schema)
    return tuple(_schema_findings(root, path)) or tuple(_default_findings(root, _structural(schema), path))


def _column_findings(column: Mapping[str, Any], path: str) -> Iterator[Cause]:
    if not column.get("name"):
        yield required(f"{path}.name")
    kind = column.get("type", "")
    if kind not in _COLUMN_TYPES:
        yield not_supported(f"{path}.type", kind, _COLUMN_TYPES)
    try:
        JSONPath(column.get("jsonPath") or "")
    except ValueError as problem:
        yield invalid_value(f"{path}.jsonPath", column.get("jsonPath", ""), str(problem))
    if not column.get("jsonPath"):
        yield required(f"{path}.jsonPath")


def _schema_findings(schema: Mapping[str, Any], path: str) -> Iterator[Cause]:
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
            yield invalid_value(where, source, f"compilation failed: {text}")
    for name, child in (schema.get("properties") or {}).items():
        if isinstance(child, Mapping):
            yield from _schema_findings(child, f"{path}.properties[{name}]")
    for field in ("additionalProperties", "items"):
        if isinstance(schema.get(field), Mapping):
            yield from _schema_findings(schema[field], f"{path}.{field}")


def _default_findings(schema: Mapping[str, Any], structural: Structural, path: str) -> Iterator[Cause]:
    """Defaults that do not fit where they stand; only of a schema that is otherwise right."""
    todo = [(schema, structural, path)]
    while todo:
        spec, compiled, where = todo.pop()
        if spec.get("default") is not None:
            value = copy.deepcopy(spec["default"])
            compiled.fill(value)
            yield from compiled.check(value, f"{where}.default")
        todo += [
            (child, compiled.properties[name], f"{where}.properties[{name}]")
            for name, child in (spec.get("properties") or {}).items()
        ]
        for field, inner in (("additionalProperties", compiled.values), ("items", compiled.items)):
            if inner is not None:
                todo.append((spec[field], inner, f"{where}.{field}"))


# -- names and conditions ----------------------------------------------------------------------------------------
def name_conflict(crd: Object, others: Iterable[Object]) -> str | None:
    """Why the names of a CRD cannot be accepted: another one of its group has them."""
    spec = crd["spec"]
    names = spec["names"]
    mine = {names["plural"], names.get("singular", ""), *names.get("shortNames", ())} - {""}
    for other in others:
        if other["spec"]["group"] != spec["group"] or other["metadata"]["name"] == crd["metadata"]["name"]:
            continue
        accepted = (other.get("status") or {}).get("acceptedNames") or {}
        theirs = {accepted.get("plural"), accepted.get("singular"), *accepted.get("shortNames", ())}
        for name in sorted(mine & theirs):
            return f'"{name}" is already in use'
        for field in ("kind", "listKind"):
            if names.get(field) and names.get(field) in (accepted.get("kind"), accepted.get("listKind")):
                return f'"{names[field]}" is already in use'
    return None


def status(crd: Object, conflict: str | None, now: str) -> Object:
    """The status that a CRD gets: conditions NamesAccepted and Established, accepted names, stored versions."""
    before = crd.get("status") or {}
    accepted = conflict is None
    names = crd["spec"]["names"]
    stored = storage_version(crd).rpartition("/")[2]
    made = [
        _condition("NamesAccepted", accepted, "NoConflicts", conflict or "no conflicts found"),
        _condition("Established", accepted, "InitialNamesAccepted", "the initial names have been accepted"),
    ]
    if not accepted:
        made[0]["reason"] = "NamesConflict"
        made[1] |= {"reason": "NotAccepted", "message": "not all names are accepted"}
    old = {c.get("type"): c for c in before.get("conditions") or []}
    for condition in made:
        same = old.get(condition["type"], {}).get("status") == condition["status"]
        condition["lastTransitionTime"] = old[condition["type"]]["lastTransitionTime"] if same else now
    kept = [c for c in before.get("conditions") or [] if c.get("type") not in ("NamesAccepted", "Established")]
    return {
        **before,
        "conditions": kept + made,
        "acceptedNames": names if accepted else before.get("acceptedNames", {"plural": "", "kind": ""}),
        "storedVersions": list(dict.fromkeys([*(before.get("storedVersions") or ()), stored])),
    }


def _condition(kind: str, holds: bool, reason: str, message: str) -> Object:
    return {"type": kind, "status": "True" if holds else "False", "reason": reason, "message": message}


# -- what a CRD serves -------------------------------------------------------------------------------------------
def served(crd: Object) -> list[ServedVersion]:
    """The served versions of an accepted CRD, compiled."""
    return [_served(crd, version) for version in crd["spec"]["versions"] if version.get("served")]


def _served(crd: Object, version: Object) -> ServedVersion:
    spec = crd["spec"]
    names = spec["names"]
    subresources = version.get("subresources") or {}
    info = ResourceInfo(
        group=spec["group"],
        version=version["name"],
        plural=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        kind=names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        subresources=tuple(word for word in ("status", "scale") if word in subresources),
        verbs=_VERBS,
        selectable=tuple(field["jsonPath"].lstrip(".") for field in version.get("selectableFields") or ()),
    )
    schema = version["schema"]["openAPIV3Schema"]
    structural = _structural(msgspec.json.encode(schema))
    preserve = bool(spec.get("preserveUnknownFields"))
    scale = subresources.get("scale")
    rules = KindRules(
        schema=openapi_schema(schema),
        default=structural.fill,
        prune=(lambda obj, old: ()) if preserve else structural.prune,
        validate=structural.validate,
        scale=_scale_paths(scale) if scale else None,
    )
    printer = crd_printer(version.get("additionalPrinterColumns") or ())
    return ServedVersion(info, rules, printer, schema, bool(version.get("storage")))


def _scale_paths(scale: Mapping[str, str]) -> ScalePaths:
    def fields(path: str) -> tuple[str, ...]:
        return tuple(part for part in path.split(".") if part)

    return ScalePaths(
        fields(scale["specReplicasPath"]),
        fields(scale["statusReplicasPath"]),
        fields(scale.get("labelSelectorPath", "")),
    )
