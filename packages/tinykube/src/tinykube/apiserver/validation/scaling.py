"""Validates HorizontalPodAutoscalers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tinykube.apiserver.failure import Cause, forbidden_value, invalid_value, not_supported, required
from tinykube.apiserver.validation.tables import Needs, Object, RuleTable, above_zero, at_least

#: A metric's type and the field with its source.
_METRICS: Final = {
    "ContainerResource": "containerResource",
    "External": "external",
    "Object": "object",
    "Pods": "pods",
    "Resource": "resource",
}
_TARGETS: Final = ("Utilization", "Value", "AverageValue")
_LONGEST_WINDOW: Final = 3600


def _target(value: Any, where: str) -> Iterator[Cause]:
    if value.get("type") not in _TARGETS:
        text = "must be either Utilization, Value, or AverageValue"
        yield invalid_value(f"{where}.type", value.get("type") or "", text)
    if value.get("averageUtilization") is not None:
        yield from at_least(1, "must be greater than 0")(value["averageUtilization"], f"{where}.averageUtilization")


def _metric(value: Any, where: str) -> Iterator[Cause]:
    kind = value.get("type") or ""
    if kind not in _METRICS:
        # Once for the type, once because no source is set for it.
        yield not_supported(f"{where}.type", kind, tuple(_METRICS))
        yield not_supported(f"{where}.type", kind, tuple(_METRICS))
        return
    source = value.get(_METRICS[kind])
    if source is None:
        text = "must populate information for the given metric source"
        yield required(f"{where}.{_METRICS[kind]}", text)
        return
    target = source.get("target") or {}
    here = f"{where}.{_METRICS[kind]}.target"
    yield from _target(target, here)
    if not any(target.get(name) is not None for name in ("value", "averageValue", "averageUtilization")):
        text = "must set either a target raw value or a target utilization"
        yield required(f"{here}.averageUtilization", text)


def _window(value: Any, where: str) -> Iterator[Cause]:
    if value < 0:
        yield invalid_value(where, value, "must be greater than or equal to zero")
    elif value > _LONGEST_WINDOW:
        yield invalid_value(where, value, f"must be less than or equal to {_LONGEST_WINDOW}")


_POLICY: Final = RuleTable(("value", above_zero), ("periodSeconds", above_zero))
_RULES: Final = RuleTable(("stabilizationWindowSeconds", _window), ("policies[]", _POLICY))
_SPEC: Final = RuleTable(
    ("scaleTargetRef", RuleTable(("kind", Needs()), ("name", Needs()))),
    ("metrics[]", _metric),
    ("behavior", RuleTable(("scaleUp", _RULES), ("scaleDown", _RULES))),
)


def validate_autoscaler(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    least, most = spec.get("minReplicas"), spec.get("maxReplicas") or 0
    causes: list[Cause] = []
    if least is not None and least < 1:
        causes.append(invalid_value("spec.minReplicas", least, "must be greater than or equal to 1"))
    if most < 1:
        causes.append(required("spec.maxReplicas", "must be set and greater than 0"))
    if least is not None and most < least:
        causes.append(invalid_value("spec.maxReplicas", most, "must be greater than or equal to `minReplicas`"))
    causes += _SPEC(spec, "spec")
    kinds = {metric.get("type") for metric in spec.get("metrics") or ()}
    if least == 0 and not kinds & {"Object", "External"}:
        text = "must specify at least one Object or External metric to support scaling to zero replicas"
        causes.append(forbidden_value("spec.metrics", text))
    return causes
