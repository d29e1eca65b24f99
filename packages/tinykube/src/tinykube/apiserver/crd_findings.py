"""Validates CustomResourceDefinitions, but not their schemas, in the words of a real server.

NB: such a server stores a definition in another form than `v1`, and its findings name the fields of that form: what all
versions have alike is a field of the whole there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from kubekit.api.formats import valid_format
from tinykube.apiserver.crd import established
from tinykube.apiserver.crd_schemas import schema_findings
from tinykube.apiserver.failure import Cause, duplicate, invalid_value, not_supported, required
from tinykube.apiserver.hooks import Object
from tinykube.apiserver.jsonpath import JSONPath

_SIMPLE_PATH: Final = "must be a simple json path starting with ."
_COLUMN_TYPES: Final = ("boolean", "date", "integer", "number", "string")


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


def _version_findings(crd: Object, versions: Sequence[Mapping[str, Any]]) -> Iterator[Cause]:
    yield from _storage_findings(versions)
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
        if (version.get("schema") or {}).get("openAPIV3Schema") is None:
            yield required(f"{path}.schema.openAPIV3Schema")
    for path, version in _places(versions, "schema", "validation"):
        root = (version.get("schema") or {}).get("openAPIV3Schema")
        if root is not None:
            with_status = "status" in (version.get("subresources") or {})
            yield from _root_type_findings(root, f"{path}.openAPIV3Schema.type", with_status=with_status)
            yield from schema_findings(msgspec.json.encode(root), f"{path}.openAPIV3Schema")
    for path, version in _places(versions, "additionalPrinterColumns", "additionalPrinterColumns"):
        for at, column in enumerate(version.get("additionalPrinterColumns") or []):
            yield from _column_findings(column, f"{path}[{at}]")
    for path, version in _places(versions, "subresources", "subresources"):
        if (scale := (version.get("subresources") or {}).get("scale")) is not None:
            yield from _scale_findings(scale, f"{path}.scale")
    gone = set((crd.get("status") or {}).get("storedVersions") or ()) - seen
    for at, name in enumerate(sorted(gone)):
        text = "missing from spec.versions; must remain in spec.versions until a migration has removed it from storage"
        yield invalid_value(f"status.storedVersions[{at}]", name, text)


def _places(versions: Sequence[Mapping[str, Any]], field: str, common: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The path of a field of each version."""
    if versions and all(version.get(field) == versions[0].get(field) for version in versions):
        yield f"spec.{common}", versions[0]
    else:
        yield from ((f"spec.versions[{index}].{field}", version) for index, version in enumerate(versions))


def _storage_findings(versions: Sequence[Mapping[str, Any]]) -> Iterator[Cause]:
    stored = [v.get("name", "") for v in versions if v.get("storage")]
    if len(stored) == 1:
        return
    text = "must have exactly one version marked as storage version"
    yield invalid_value("spec.versions", [_go_version(version) for version in versions], text)
    if stored:
        yield invalid_value("status.storedVersions", stored[:1], f"must have the storage version {stored[-1]}")
    else:
        yield invalid_value("status.storedVersions", None, "must have at least one stored version")


def _go_version(version: Mapping[str, Any]) -> Object:
    """A version as Go prints its type; what a real server has moved out of it is null."""
    moved = ("DeprecationWarning", "Schema", "Subresources", "AdditionalPrinterColumns", "SelectableFields")
    return {
        "Name": version.get("name", ""),
        "Served": bool(version.get("served")),
        "Storage": bool(version.get("storage")),
        "Deprecated": bool(version.get("deprecated")),
        **dict.fromkeys(moved),
    }


def _root_type_findings(root: Mapping[str, Any], path: str, *, with_status: bool) -> Iterator[Cause]:
    kind = root.get("type", "")
    if kind == "object":
        return
    if with_status:
        text = 'only "object" is allowed as the type at the root of the schema if the status subresource is enabled'
        yield invalid_value(path, kind, text)
    yield invalid_value(path, kind, "must be object at the root")


def _scale_findings(scale: Mapping[str, Any], path: str) -> Iterator[Cause]:
    for field, root in (("specReplicasPath", ".spec"), ("statusReplicasPath", ".status")):
        value = scale.get(field) or ""
        if not value:
            yield required(f"{path}.{field}")
        elif not value.startswith("."):
            yield invalid_value(f"{path}.{field}", value, _SIMPLE_PATH)
        elif not value.startswith(f"{root}."):
            yield invalid_value(f"{path}.{field}", value, f"should be a json path under {root}")


def _column_findings(column: Mapping[str, Any], path: str) -> Iterator[Cause]:
    if not column.get("name"):
        yield required(f"{path}.name")
    kind, where = column.get("type", ""), column.get("jsonPath") or ""
    if kind not in _COLUMN_TYPES:
        yield invalid_value(f"{path}.type", kind, f"must be one of {','.join(_COLUMN_TYPES)}")
    if not where:
        yield required(f"{path}.JSONPath")
    elif not where.startswith("."):
        yield invalid_value(f"{path}.JSONPath", where, _SIMPLE_PATH)
    else:
        try:
            JSONPath(where)
        except ValueError as problem:
            yield invalid_value(f"{path}.JSONPath", where, str(problem))
