"""Rules for what decides where pods run: selectors and affinity, tolerations and taints, spreading."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tinykube.apiserver.failure import Cause, duplicate, invalid_value, not_supported, required
from tinykube.apiserver.validation.names import (
    dns_label,
    label_value,
    qualified_name,
    validate_labels,
    validate_selector,
)
from tinykube.apiserver.validation.tables import Needs, Object, RuleTable, above_zero, between, one_of

_RANGE: Final = between(1, 100, "must be in the range 1-100")


def node_requirement(value: Any, where: str) -> Iterator[Cause]:
    operator, values = value.get("operator"), value.get("values")
    if operator in ("In", "NotIn"):
        if not values:
            yield required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            text = "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield Cause("FieldValueForbidden", text, f"{where}.values")
    elif operator in ("Gt", "Lt"):
        if len(values or ()) != 1:
            yield required(f"{where}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
    else:
        yield invalid_value(f"{where}.operator", operator or "", "not a valid selector operator")
    yield from qualified_name(value.get("key") or "", f"{where}.key")


def _node_field(value: Any, where: str) -> Iterator[Cause]:
    if value.get("operator") not in ("In", "NotIn"):
        yield invalid_value(f"{where}.operator", value.get("operator"), "not a valid selector operator")
    elif len(value.get("values") or ()) != 1:
        yield required(
            f"{where}.values", "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        )
    if value.get("key") != "metadata.name":
        yield invalid_value(f"{where}.key", value.get("key"), "not a valid field selector key")


NODE_TERM: Final = RuleTable(("matchExpressions[]", node_requirement), ("matchFields[]", _node_field))


def node_selector(value: Any, where: str) -> Iterator[Cause]:
    """A NodeSelector: at least one term."""
    if not value.get("nodeSelectorTerms"):
        yield required(f"{where}.nodeSelectorTerms", "must have at least one node selector term")
    yield from RuleTable(("nodeSelectorTerms[]", NODE_TERM))(value, where)


def _selector(value: Any, where: str) -> list[Cause]:
    return validate_selector(value, where)


def _namespaces(value: Any, where: str) -> Iterator[Cause]:
    """The names of a term; the real server calls their field `namespace`."""
    for name in value.get("namespaces") or ():
        yield from dns_label(name, f"{where}.namespace")


def _topology(value: Any, where: str) -> Iterator[Cause]:
    key = value.get("topologyKey") or ""
    if not key:
        yield required(f"{where}.topologyKey", "can not be empty")
    yield from qualified_name(key, f"{where}.topologyKey")


_POD_TERM: Final = RuleTable(
    ("labelSelector", _selector), ("namespaceSelector", _selector), ("", _namespaces), ("", _topology)
)
_PODS: Final = RuleTable(
    ("requiredDuringSchedulingIgnoredDuringExecution[]", _POD_TERM),
    (
        "preferredDuringSchedulingIgnoredDuringExecution[]",
        RuleTable(("weight", _RANGE), ("podAffinityTerm", _POD_TERM)),
    ),
)
AFFINITY: Final = RuleTable(
    (
        "nodeAffinity",
        RuleTable(
            ("requiredDuringSchedulingIgnoredDuringExecution", node_selector),
            (
                "preferredDuringSchedulingIgnoredDuringExecution[]",
                RuleTable(("weight", _RANGE), ("preference", NODE_TERM)),
            ),
        ),
    ),
    ("podAffinity", _PODS),
    ("podAntiAffinity", _PODS),
)

_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_OPERATORS: Final = ("Equal", "Exists")
_COMPARING: Final = ("Lt", "Gt")  # behind a feature gate that is off, and yet in the message of others


def toleration(value: Any, where: str) -> Iterator[Cause]:
    key, operator = value.get("key"), value.get("operator") or "Equal"
    if key:
        yield from qualified_name(key, f"{where}.key")
    if not key and operator != "Exists":
        text = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield invalid_value(f"{where}.operator", operator, text)
    if value.get("tolerationSeconds") is not None and value.get("effect") != "NoExecute":
        text = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield invalid_value(f"{where}.effect", value.get("effect") or "", text)
    if operator == "Equal":
        yield from label_value(value.get("value") or "", f"{where}.operator")
    elif operator == "Exists":
        if value.get("value"):
            text = "value must be empty when `operator` is 'Exists'"
            yield invalid_value(f"{where}.operator", value["value"], text)
    else:
        yield not_supported(
            f"{where}.operator", operator, (*_OPERATORS, *(_COMPARING if operator in _COMPARING else ()))
        )
    if value.get("effect"):
        yield from one_of(*_EFFECTS)(value["effect"], f"{where}.effect")


def validate_taints(taints: list[Object], where: str) -> Iterator[Cause]:
    seen = set()
    for index, taint in enumerate(taints):
        here = f"{where}[{index}]"
        key, value, effect = (taint.get(name) or "" for name in ("key", "value", "effect"))
        yield from qualified_name(key, f"{here}.key")
        yield from label_value(value, f"{here}.value")
        yield from RuleTable(("effect", Needs(), one_of(*_EFFECTS)))(taint, here)
        if (key, effect) in seen:
            whole = {"Key": key, "Value": value, "Effect": effect, "TimeAdded": None}
            yield duplicate(here, whole, "taints must be unique by key and effect pair")
        seen.add((key, effect))


_SPREAD: Final = RuleTable(
    ("maxSkew", above_zero),
    ("topologyKey", Needs("can not be empty")),
    ("whenUnsatisfiable", one_of("DoNotSchedule", "ScheduleAnyway")),
    ("minDomains", above_zero),
    ("nodeAffinityPolicy", one_of("Honor", "Ignore")),
    ("nodeTaintsPolicy", one_of("Honor", "Ignore")),
    ("labelSelector", _selector),
)


def spreading(value: Any, where: str) -> Iterator[Cause]:
    """A pod's topology spread constraints."""
    pairs = [(one.get("topologyKey"), one.get("whenUnsatisfiable")) for one in value]
    for index, constraint in enumerate(value):
        here = f"{where}[{index}]"
        yield from _SPREAD(constraint, here)
        key, unsatisfiable = constraint.get("topologyKey"), constraint.get("whenUnsatisfiable")
        if constraint.get("minDomains") and unsatisfiable == "ScheduleAnyway":
            text = "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway"
            yield invalid_value(f"{here}.minDomains", constraint["minDomains"], text)
        if pairs[index] in pairs[index + 1 :]:
            yield duplicate(f"{here}.{{topologyKey, whenUnsatisfiable}}", f"{{{key}, {unsatisfiable}}}")
        labels = (constraint.get("labelSelector") or {}).get("matchLabels") or {}
        for at, name in enumerate(constraint.get("matchLabelKeys") or ()):
            if name in labels:
                yield invalid_value(f"{here}[{at}]", name, "exists in both matchLabelKeys and labelSelector")


def labels_of_nodes(value: Any, where: str) -> list[Cause]:
    """A plain selector of nodes."""
    return validate_labels(value, where)
