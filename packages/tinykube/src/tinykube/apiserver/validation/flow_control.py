"""Validates FlowSchemas and PriorityLevelConfigurations. The embedded API server stores them; nothing is limited."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tinykube.apiserver.failure import Cause, forbidden_value, invalid_value, not_supported, required
from tinykube.apiserver.validation.tables import Needs, Object, RuleTable, at_least

_MOST_PRECEDENCE: Final = 10_000
_SUBJECTS: Final = {"Group": "group", "ServiceAccount": "serviceAccount", "User": "user"}
_MOST_QUEUES: Final = 10_000_000


def _subject(value: Any, where: str) -> Iterator[Cause]:
    kind = value.get("kind") or ""
    if kind not in _SUBJECTS:
        yield not_supported(f"{where}.kind", kind, tuple(_SUBJECTS))
        return
    field = _SUBJECTS[kind]
    if value.get(field) is None:
        yield required(f"{where}.{field}", f"{field} is required when subject kind is '{kind}'")
    elif not value[field].get("name"):
        yield required(f"{where}.{field}.name")
    for name in _SUBJECTS.values():
        if name != field and value.get(name) is not None:
            yield forbidden_value(f"{where}.{name}", f"{name} is forbidden when subject kind is not '{name}'")


def _resources(value: Any, where: str) -> Iterator[Cause]:
    for field in ("verbs", "apiGroups", "resources"):
        if not value.get(field):
            yield required(f"{where}.{field}")
    if not value.get("namespaces") and not value.get("clusterScope"):
        text = "resource rules that are not cluster scoped must supply at least one namespace"
        yield required(f"{where}.namespaces", text)


_RULE: Final = RuleTable(
    ("subjects", Needs("subjects must contain at least one value")),
    ("subjects[]", _subject),
    ("resourceRules[]", _resources),
    ("nonResourceRules[]", RuleTable(("verbs", Needs()), ("nonResourceURLs", Needs()))),
)


def _rules(value: Any, where: str) -> Iterator[Cause]:
    for index, rule in enumerate(value):
        here = f"{where}[{index}]"
        yield from _RULE(rule, here)
        if not rule.get("resourceRules") and not rule.get("nonResourceRules"):
            yield required(here, "at least one of resourceRules and nonResourceRules has to be non-empty")


def validate_flow_schema(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes: list[Cause] = []
    precedence = spec.get("matchingPrecedence") or 0
    if precedence <= 0:
        causes.append(invalid_value("spec.matchingPrecedence", precedence, "must be a positive value"))
    elif precedence > _MOST_PRECEDENCE:
        text = f"must not be greater than {_MOST_PRECEDENCE}"
        causes.append(invalid_value("spec.matchingPrecedence", precedence, text))
    method = spec.get("distinguisherMethod")
    if method is not None and method.get("type") not in ("ByNamespace", "ByUser"):
        where = "spec.distinguisherMethod.type"
        causes.append(not_supported(where, {"Type": method.get("type") or ""}, ("ByNamespace", "ByUser")))
    if not (spec.get("priorityLevelConfiguration") or {}).get("name"):
        causes.append(required("spec.priorityLevelConfiguration.name", "must reference a priority level"))
    return [*causes, *_rules(spec.get("rules") or (), "spec.rules")]


def _queuing(value: Any, where: str) -> Iterator[Cause]:
    for field in ("queueLengthLimit", "queues", "handSize"):
        if (value.get(field) or 0) <= 0:
            yield invalid_value(f"{where}.{field}", value.get(field) or 0, "must be positive")
    if (value.get("queues") or 0) > _MOST_QUEUES:
        yield invalid_value(f"{where}.queues", value["queues"], f"must not be greater than {_MOST_QUEUES}")
    if (value.get("handSize") or 0) > (value.get("queues") or 0):
        text = f"should not be greater than queues ({value.get('queues') or 0})"
        yield invalid_value(f"{where}.handSize", value["handSize"], text)


def _response(value: Any, where: str) -> Iterator[Cause]:
    kind = value.get("type") or ""
    if kind == "Reject" and value.get("queuing") is not None:
        yield forbidden_value(f"{where}.queuing", "must be nil if limited.limitResponse.type is not Limited")
    elif kind == "Queue" and value.get("queuing") is None:
        yield required(f"{where}.queuing", "must not be empty if limited.limitResponse.type is Limited")
    elif kind == "Queue":
        yield from _queuing(value["queuing"], f"{where}.queuing")
    elif kind != "Reject":
        yield not_supported(f"{where}.type", kind, ("Queue", "Reject"))


def _percent(value: Any, where: str) -> Iterator[Cause]:
    if not 0 <= value <= 100:
        yield invalid_value(where, value, "must be between 0 and 100, inclusive")


_not_negative: Final = at_least(0, "must be a non-negative integer")
_LIMITED: Final = RuleTable(
    ("nominalConcurrencyShares", _not_negative),
    ("limitResponse", _response),
    ("lendablePercent", _percent),
    ("borrowingLimitPercent", _not_negative),
)
_EXEMPT: Final = RuleTable(("nominalConcurrencyShares", _not_negative), ("lendablePercent", _percent))


def validate_priority_level(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    kind = spec.get("type") or ""
    if kind not in ("Exempt", "Limited"):
        return [not_supported("spec.type", kind, ("Exempt", "Limited"))]
    if kind == "Exempt":
        if spec.get("limited") is not None:
            return [forbidden_value("spec.limited", "must be nil if the type is not Limited")]
        return list(_EXEMPT(spec.get("exempt") or {}, "spec.exempt"))
    if spec.get("exempt") is not None:
        return [forbidden_value("spec.exempt", "must be nil if the type is Limited")]
    if spec.get("limited") is None:
        return [required("spec.limited", "must not be empty when type is Limited")]
    return list(_LIMITED(spec["limited"], "spec.limited"))
