"""The objects and tables of metrics.k8s.io. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from tinykube.metrics.points import UseBetween, total_quantities, window_text

Object = dict[str, Any]
_RESOURCES: Final = ("cpu", "memory")


def pod_metrics(meta: Mapping[str, Any], uses: Mapping[str, UseBetween], whole: UseBetween, now: str) -> Object:
    """Return the metrics of a pod; `whole` has the time and the window of its oldest container."""
    return {
        "metadata": _metadata(meta, now),
        "timestamp": _time(whole.time),
        "window": window_text(whole.window),
        "containers": [{"name": name, "usage": use.quantities()} for name, use in uses.items()],
    }


def node_metrics(meta: Mapping[str, Any], use: UseBetween, now: str) -> Object:
    """Return the metrics of a node."""
    return {
        "metadata": _metadata(meta, now),
        "timestamp": _time(use.time),
        "window": window_text(use.window),
        "usage": use.quantities(),
    }


def table(items: Sequence[Object], *, version: str, include: str) -> Object:
    """Return items as a table of `meta.k8s.io`: one column for each resource, and the window."""
    columns = [
        _column("Name", "name", "Name of the resource"),
        *(_column(name, "quantity") for name in _RESOURCES),
        _column("Window", "duration"),
    ]
    rows = []
    for item in items:
        usage = item.get("usage") or total_quantities([one["usage"] for one in item["containers"]])
        row: Object = {"cells": [item["metadata"]["name"], *(usage[name] for name in _RESOURCES), item["window"]]}
        partial = {
            "kind": "PartialObjectMetadata",
            "apiVersion": f"meta.k8s.io/{version}",
            "metadata": item["metadata"],
        }
        row["object"] = {"Object": item, "None": None}.get(include, partial)
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": {},
        "columnDefinitions": columns if rows else [],
        "rows": rows,
    }


def _column(name: str, form: str, about: str = "") -> Object:
    return {"name": name, "type": "string", "format": form, "description": about, "priority": 0}


def _metadata(meta: Mapping[str, Any], now: str) -> Object:
    kept = {name: meta[name] for name in ("name", "namespace", "labels") if meta.get(name)}
    return {**kept, "creationTimestamp": now}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
