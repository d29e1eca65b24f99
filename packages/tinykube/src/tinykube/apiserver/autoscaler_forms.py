"""The two versions of a HorizontalPodAutoscaler: `autoscaling/v2`, in which it is stored, and `autoscaling/v1`.

The first version has one metric, the CPU utilization. It carries the others, the behavior and the conditions as JSON in
annotations, so that no client loses what another has written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import msgspec

from kubekit.documents import DocumentError, decode_json
from tinykube.apiserver.hooks import KindRules
from tinykube.apiserver.printers import Printer

Object = dict[str, Any]

_PREFIX: Final = "autoscaling.alpha.kubernetes.io/"
# annotation -> where its value is in v2
_CARRIED: Final = {
    _PREFIX + "metrics": ("spec", "metrics"),
    _PREFIX + "behavior": ("spec", "behavior"),
    _PREFIX + "current-metrics": ("status", "currentMetrics"),
    _PREFIX + "conditions": ("status", "conditions"),
}
_DEFAULT_PERCENT: Final = 80


def first_version_rules(rules: KindRules) -> KindRules:
    """Return the rules of `autoscaling/v1`, from those of `autoscaling/v2`."""

    def default(obj: Object) -> None:
        spec = obj.setdefault("spec", {})
        if spec.get("minReplicas") is None:
            spec["minReplicas"] = 1
        carried = (obj.get("metadata") or {}).get("annotations") or {}
        if spec.get("targetCPUUtilizationPercentage") is None and _PREFIX + "metrics" not in carried:
            spec["targetCPUUtilizationPercentage"] = _DEFAULT_PERCENT

    return replace(
        rules,
        default=default,
        validate=lambda obj, old: rules.validate(to_second(obj), None if old is None else to_second(old)),
    )


def first_version_printer(printer: Printer) -> Printer:
    """Return a printer of `autoscaling/v1` with the columns of `autoscaling/v2`."""

    def row(obj: Mapping[str, Any], now: datetime) -> list[Any]:
        return printer.row(to_second(dict(obj)), now)

    return Printer(printer.columns, row)


def to_second(obj: Object) -> Object:
    """Return an autoscaler of `autoscaling/v1` as it is stored."""
    parts: dict[str, Object] = {name: dict(obj.get(name) or {}) for name in ("spec", "status")}
    metadata = dict(obj["metadata"])
    annotations = dict(metadata.get("annotations") or {})
    for name, (part, field) in _CARRIED.items():
        if (text := annotations.pop(name, None)) is not None and (value := _read(text)) is not None:
            parts[part][field] = value
    for part, old, field, make in (
        ("spec", "targetCPUUtilizationPercentage", "metrics", _target),
        ("status", "currentCPUUtilizationPercentage", "currentMetrics", _current),
    ):
        if (percent := parts[part].pop(old, None)) is not None:
            parts[part][field] = [make(percent), *(parts[part].get(field) or ())]
    return _with_parts(obj, "autoscaling/v2", metadata, annotations, parts)


def from_second(obj: Object) -> Object:
    """Return a stored autoscaler as `autoscaling/v1`."""
    parts: dict[str, Object] = {name: dict(obj.get(name) or {}) for name in ("spec", "status")}
    metadata = dict(obj["metadata"])
    annotations = dict(metadata.get("annotations") or {})
    for part, old, field, inner in (
        ("spec", "targetCPUUtilizationPercentage", "metrics", "target"),
        ("status", "currentCPUUtilizationPercentage", "currentMetrics", "current"),
    ):
        metrics = list(parts[part].get(field) or ())
        found = next((metric for metric in metrics if _percent(metric, inner) is not None), None)
        if found is not None:
            parts[part][old] = _percent(found, inner)
            parts[part][field] = [metric for metric in metrics if metric is not found]
    for name, (part, field) in _CARRIED.items():
        if value := parts[part].pop(field, None):
            annotations[name] = msgspec.json.encode(value).decode()
    return _with_parts(obj, "autoscaling/v1", metadata, annotations, parts)


def _with_parts(
    obj: Object, api_version: str, metadata: Object, annotations: Object, parts: dict[str, Object]
) -> Object:
    metadata.pop("annotations", None)
    if annotations:
        metadata["annotations"] = annotations
    made = {**obj, "apiVersion": api_version, "metadata": metadata}
    return made | {name: part for name, part in parts.items() if part or name in obj}


def _read(text: Any) -> Any:
    """The value of an annotation; None for what another program has written there."""
    try:
        value = decode_json(text.encode())
    except (DocumentError, AttributeError):
        return None
    return value if isinstance(value, (list, dict)) else None


def _percent(metric: Object, inner: str) -> int | None:
    """The CPU utilization that a metric of the pods' own resources is about."""
    source = metric.get("resource") or {}
    if metric.get("type") != "Resource" or source.get("name") != "cpu":
        return None
    found: int | None = (source.get(inner) or {}).get("averageUtilization")
    return found


def _resource(inner: str, **more: Any) -> Callable[[int], Object]:
    def make(percent: int) -> Object:
        return {"type": "Resource", "resource": {"name": "cpu", inner: {**more, "averageUtilization": percent}}}

    return make


_target: Final = _resource("target", type="Utilization")
_current: Final = _resource("current")
