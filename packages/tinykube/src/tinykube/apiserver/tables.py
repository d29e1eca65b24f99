"""Server-side tables (`Accept: application/json;as=Table;v=v1;g=meta.k8s.io`): what `kubectl get` prints.

A client that asks for a table gets one row an object; the cells follow the kind's columns, the `object` of a row is
its metadata (default), nothing or the whole, as `includeObject` asks. In a watch only the first event carries columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from kubekit.api.durations import UNKNOWN, age
from tinykube.apiserver.jsonpath import JSONPath
from tinykube.apiserver.printers import DEFAULT, PRINTERS, Object, Printer, TableColumn


def table_version(accept: str) -> str | None:
    """The `meta.k8s.io` version of the table that an Accept header prefers, None when it wants no table."""
    for offer in accept.split(","):
        media, *parameters = (part.strip() for part in offer.split(";"))
        options = dict(p.split("=", 1) for p in parameters if "=" in p)
        if media not in ("application/json", "*/*", "application/*"):
            continue
        if options.get("as") != "Table":
            return None
        if options.get("g") == "meta.k8s.io" and options.get("v") in ("v1", "v1beta1"):
            return options["v"]
    return None


def partial_metadata_version(accept: str, *, kind: str = "PartialObjectMetadata") -> str | None:
    """As `table_version`, for clients that ask for metadata only (`as=PartialObjectMetadata[List]`)."""
    first = accept.split(",", 1)[0]
    options = dict(p.strip().split("=", 1) for p in first.split(";")[1:] if "=" in p)
    if options.get("as") == kind and options.get("g") == "meta.k8s.io":
        return options.get("v")
    return None


def printer_for(group: str, plural: str) -> Printer:
    return PRINTERS.get((group, plural), DEFAULT)


def crd_printer(columns: Sequence[Mapping[str, Any]]) -> Printer:
    """The printer of a custom resource: its name and its `additionalPrinterColumns` (by default the age)."""
    wanted = columns or ({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},)
    header = [TableColumn("Name", format="name")]
    paths: list[tuple[str, JSONPath]] = []
    for column in wanted:
        kind = str(column.get("type", "string"))
        header.append(
            TableColumn(
                column["name"],
                int(column.get("priority", 0)),
                kind,
                column.get("format", ""),
                column.get("description")
                or f"Custom resource definition column (in JSONPath format): {column['jsonPath']}",
            )
        )
        paths.append((kind, JSONPath(column["jsonPath"])))

    def row(obj: Object, now: datetime) -> list[Any]:
        return [obj["metadata"]["name"], *(_cell(kind, path, obj, now) for kind, path in paths)]

    return Printer(tuple(header), row)


def _cell(kind: str, path: JSONPath, obj: Object, now: datetime) -> Any:
    found = path.find(obj)
    if not found or found[0] is None:
        return None
    value = found[0]
    if kind == "date":
        return age(value, now)
    if kind == "integer":
        return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if kind == "number":
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if len(found) > 1:
        return " ".join(go_text(item) for item in found)
    return go_text(value)


def go_text(value: Any) -> str:
    """As Go's `%v` writes JSON data, which is what kubectl users know."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + " ".join(go_text(item) for item in value) + "]"
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{go_text(value[key])}" for key in sorted(value)) + "]"
    return UNKNOWN if value is None else str(value)


def to_table(
    printer: Printer,
    objects: Iterable[Object],
    *,
    now: datetime,
    version: str = "v1",
    include_object: str = "Metadata",
    list_metadata: Mapping[str, Any] | None = None,
    headers: bool = True,
) -> dict[str, Any]:
    """A `meta.k8s.io` Table of `objects`.

    `include_object` is None, Metadata or Object (the query parameter). `list_metadata` holds resourceVersion and
    continue of a list.
    """
    rows = []
    for obj in objects:
        row: dict[str, Any] = {"cells": printer.row(obj, now)}
        if include_object == "Object":
            row["object"] = obj
        elif include_object != "None":
            row["object"] = {
                "kind": "PartialObjectMetadata",
                "apiVersion": f"meta.k8s.io/{version}",
                "metadata": obj["metadata"],
            }
        else:
            row["object"] = None
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": dict(list_metadata or {}),
        "columnDefinitions": [_definition(column) for column in printer.columns] if headers else [],
        "rows": rows,
    }


def _definition(column: TableColumn) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    }
