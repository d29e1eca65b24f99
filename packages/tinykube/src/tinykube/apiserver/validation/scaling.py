"""Validates HorizontalPodAutoscalers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from kubekit.api.quantity import parse_quantity
from tinykube.apiserver.failure import Cause, forbidden_value, invalid_value, not_supported, required
from tinykube.apiserver.validation.tables import Needs, Object, RuleTable, at_least, is_quantity

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
_LONGEST_PERIOD: Final = 1800
_SELECTIONS: Final = ("Disabled", "Max", "Min")
_POLICIES: Final = ("Percent", "Pods")
_RAW_OR_PERCENT: Final = "must set either a target raw value or a target utilization"
_NOT_BOTH: Final = "may not set both a target raw value and a target utilization"


#: By a metric's type: the fields of its target of which one is needed, where that is missed, and the message.
_NEEDED: Final = {
    "Object": (("value", "averageValue"), "averageValue", "must set either a target value or averageValue"),
    "External": (
        ("value", "averageValue"),
        "averageValue",
        "must set either a target value for metric or a per-pod target",
    ),
    "Pods": (("averageValue",), "averageValue", "must specify a positive target averageValue"),
    "Resource": (("averageUtilization", "averageValue"), "averageUtilization", _RAW_OR_PERCENT),
    "ContainerResource": (("averageUtilization", "averageValue"), "averageUtilization", _RAW_OR_PERCENT),
}
#: By a metric's type: the field that may not be set next to another one, and the message.
_ONE_ONLY: Final = {
    "External": ("value", "averageValue", "may not set both a target value for metric and a per-pod target"),
    "Resource": ("averageValue", "averageUtilization", _NOT_BOTH),
    "ContainerResource": ("averageValue", "averageUtilization", _NOT_BOTH),
}


def _target(value: Any, where: str) -> Iterator[Cause]:
    if not value.get("type"):
        yield required(f"{where}.type", "must specify a metric target type")
    if value.get("type") not in _TARGETS:
        text = "must be either Utilization, Value, or AverageValue"
        yield invalid_value(f"{where}.type", value.get("type") or "", text)
    for name in ("value", "averageValue"):
        if is_quantity(value.get(name)) and parse_quantity(value[name]) <= 0:
            yield invalid_value(f"{where}.{name}", value[name], "must be positive")
    if value.get("averageUtilization") is not None:
        yield from at_least(1, "must be greater than 0")(value["averageUtilization"], f"{where}.averageUtilization")


def _metric(value: Any, where: str) -> Iterator[Cause]:
    kind = value.get("type") or ""
    if not kind:
        yield required(f"{where}.type", "must specify a metric source type")
    if kind not in _METRICS:
        # Once for the type, once because no source is set for it.
        yield not_supported(f"{where}.type", kind, tuple(_METRICS))
        yield not_supported(f"{where}.type", kind, tuple(_METRICS))
        return
    field = _METRICS[kind]
    source = value.get(field)
    if source is None:
        text = "must populate information for the given metric source"
        yield required(f"{where}.{field}", text)
        return
    if kind in ("Resource", "ContainerResource"):
        if not source.get("name"):
            yield required(f"{where}.{field}.name", "must specify a resource name")
        if kind == "ContainerResource" and not source.get("container"):
            yield required(f"{where}.{field}.container", "must specify a container")
    elif not (source.get("metric") or {}).get("name"):
        yield required(f"{where}.{field}.metric.name", "must specify a metric name")
    target, here = source.get("target") or {}, f"{where}.{field}.target"
    yield from _target(target, here)
    names, missed, text = _NEEDED[kind]
    if not any(target.get(name) is not None for name in names):
        yield required(f"{here}.{missed}", text)
    if kind in _ONE_ONLY:
        name, other, text = _ONE_ONLY[kind]
        if target.get(name) is not None and target.get(other) is not None:
            yield forbidden_value(f"{here}.{name}", text)


def _window(value: Any, where: str) -> Iterator[Cause]:
    if value < 0:
        yield invalid_value(where, value, "must be greater than or equal to zero")
    elif value > _LONGEST_WINDOW:
        yield invalid_value(where, value, f"must be less than or equal to {_LONGEST_WINDOW}")


def _period(value: Any, where: str) -> Iterator[Cause]:
    if value <= 0:
        yield invalid_value(where, value, "must be greater than zero")
    elif value > _LONGEST_PERIOD:
        yield invalid_value(where, value, f"must be less than or equal to {_LONGEST_PERIOD}")


def _rules(value: Any, where: str) -> Iterator[Cause]:
    if (window := value.get("stabilizationWindowSeconds")) is not None:
        yield from _window(window, f"{where}.stabilizationWindowSeconds")
    if (selection := value.get("selectPolicy")) is not None and selection not in _SELECTIONS:
        yield not_supported(f"{where}.selectPolicy", selection, _SELECTIONS)
    if not value.get("policies"):
        yield required(f"{where}.policies", "must specify at least one Policy")
    for number, policy in enumerate(value.get("policies") or ()):
        here = f"{where}.policies[{number}]"
        if policy.get("type") not in _POLICIES:
            yield not_supported(f"{here}.type", policy.get("type") or "", _POLICIES)
        if policy.get("value", 0) <= 0:
            yield invalid_value(f"{here}.value", policy.get("value", 0), "must be greater than zero")
        yield from _period(policy.get("periodSeconds", 0), f"{here}.periodSeconds")
    tolerance = value.get("tolerance")
    if is_quantity(tolerance) and parse_quantity(tolerance) < 0:
        yield invalid_value(f"{where}.tolerance", tolerance, "must be greater than or equal to 0")


_SPEC: Final = RuleTable(
    ("scaleTargetRef", RuleTable(("kind", Needs()), ("name", Needs()))),
    ("metrics[]", _metric),
    ("behavior", RuleTable(("scaleUp", _rules), ("scaleDown", _rules))),
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
