"""Validates what lies in no namespace of a user: Nodes, Namespaces, PriorityClasses, RuntimeClasses; and budgets and
leases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tinykube.apiserver.failure import Cause, forbidden_value, invalid_value
from tinykube.apiserver.validation.names import dns_label, qualified_name, validate_selector
from tinykube.apiserver.validation.placement import labels_of_nodes, toleration, validate_taints
from tinykube.apiserver.validation.resources import resource_amount
from tinykube.apiserver.validation.tables import (
    Needs,
    Object,
    RuleTable,
    address_range,
    at_least,
    immutable,
    not_negative,
    number_or_percent,
    one_of,
)

_RANGES: Final = RuleTable(("podCIDRs[]", address_range))


def validate_node(obj: Object, old: Object | None) -> list[Cause]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    before = (old or {}).get("spec") or {}
    causes: list[Cause] = []
    if spec.get("taints") and spec["taints"] != before.get("taints"):
        causes += validate_taints(spec["taints"], "metadata.taints")  # as the real server names them
    for field in ("capacity", "allocatable"):
        amounts = status.get(field) or {}
        if old is None or amounts != (old.get("status") or {}).get(field):
            for name, value in amounts.items():
                causes += resource_amount(name, value, f"status.{field}.{name}")
    causes += _RANGES(spec, "spec")
    if old is not None:
        if before.get("providerID") and spec.get("providerID") != before["providerID"]:
            text = 'node updates may not change providerID except from "" to valid'
            causes.append(forbidden_value("spec.providerID", text))
        if before.get("podCIDRs") and spec.get("podCIDRs") != before["podCIDRs"]:
            text = 'node updates may not change podCIDR except from "" to valid'
            causes.append(forbidden_value("spec.podCIDRs", text))
    return causes


_STANDARD_FINALIZERS: Final = ("kubernetes", "orphan", "foregroundDeletion")


def validate_namespace(obj: Object, old: Object | None) -> list[Cause]:
    causes: list[Cause] = []
    for name in (obj.get("spec") or {}).get("finalizers") or ():
        causes += qualified_name(name, "spec.finalizers")
        if "/" not in name and name not in _STANDARD_FINALIZERS:
            text = "name is neither a standard finalizer name nor is it fully qualified"
            causes.append(invalid_value("spec.finalizers", name, text))
    return causes


_MOST_PRIORITY: Final = 1_000_000_000
_SYSTEM_CLASSES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_PREEMPTION: Final = RuleTable(("preemptionPolicy", one_of("PreemptLowerPriority", "Never")))


def validate_priority_class(obj: Object, old: Object | None) -> list[Cause]:
    name, value = obj["metadata"].get("name") or "", obj.get("value") or 0
    causes: list[Cause] = []
    if name.startswith("system-"):
        if value != _SYSTEM_CLASSES.get(name):
            text = "priority class names with 'system-' prefix are reserved for system use only. error: "
            text += f"{name} is not a known system priority class"
            causes.append(forbidden_value("metadata.name", text))
    elif value > _MOST_PRIORITY:
        text = f"maximum allowed value of a user defined priority is {_MOST_PRIORITY}"
        causes.append(forbidden_value("value", text))
    causes += _PREEMPTION(obj, "")
    if old is not None:
        if value != (old.get("value") or 0):
            causes.append(forbidden_value("value", "may not be changed in an update."))
        causes += immutable(obj, old, "preemptionPolicy")
    return causes


def _tolerations(value: Any, where: str) -> Iterator[Cause]:
    for index, one in enumerate(value):
        yield from toleration(one, f"{where}[{index}]")


_RUNTIME: Final = RuleTable(
    ("handler", Needs(), dns_label),
    ("scheduling", RuleTable(("nodeSelector", labels_of_nodes), ("tolerations", _tolerations))),
)


def validate_runtime_class(obj: Object, old: Object | None) -> list[Cause]:
    causes = [*_RUNTIME(obj, "")]
    return causes if old is None else [*causes, *immutable(obj, old, "handler")]


def _selector(value: Any, where: str) -> list[Cause]:
    return validate_selector(value, where)


_BUDGET: Final = RuleTable(
    ("minAvailable", number_or_percent),
    ("maxUnavailable", number_or_percent),
    ("selector", _selector),
    ("unhealthyPodEvictionPolicy", one_of("AlwaysAllow", "IfHealthyBudget")),
)


def validate_disruption_budget(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes: list[Cause] = []
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        whole = {
            "MinAvailable": spec["minAvailable"],
            "Selector": spec.get("selector"),
            "MaxUnavailable": spec["maxUnavailable"],
            "UnhealthyPodEvictionPolicy": spec.get("unhealthyPodEvictionPolicy"),
        }
        causes.append(invalid_value("spec", whole, "minAvailable and maxUnavailable cannot be both set"))
    return [*causes, *_BUDGET(spec, "spec")]


_LEASE: Final = RuleTable(
    ("leaseDurationSeconds", at_least(1, "must be greater than 0")), ("leaseTransitions", not_negative)
)


def validate_lease(obj: Object, old: Object | None) -> list[Cause]:
    return list(_LEASE(obj.get("spec") or {}, "spec"))
