"""Validates ResourceSlices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from tinykube.apiserver.failure import Cause, forbidden_value, invalid_value, required
from tinykube.apiserver.validation.claims import EFFECTS, unique_names
from tinykube.apiserver.validation.names import dns_label, dns_subdomain, label_value, qualified_name
from tinykube.apiserver.validation.tables import (
    Needs,
    Object,
    RuleTable,
    above_zero,
    amount,
    at_least,
    immutable,
    text_like,
)

_IDENTIFIER: Final = text_like(
    re.compile("[A-Za-z_][A-Za-z0-9_]*"),
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters "
    "or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')",
    32,
)
_NODES: Final = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_VALUES: Final = ("int", "bool", "string", "version", "ints", "bools", "strings", "versions")
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")


def _value_of(value: Object, where: str) -> Iterator[Cause]:
    given = [name for name in _VALUES if value.get(name) is not None]
    if not given:
        yield invalid_value(where, "", "exactly one value must be specified")
    elif len(given) > 1:
        singles, plurals = _VALUES[:4], _VALUES[4:]
        shown = {f"{name.capitalize()}Value": value.get(name) for name in singles}
        shown |= {f"{name.capitalize()[:-1]}Values": value.get(name) for name in plurals}
        yield invalid_value(where, shown, "exactly one value must be specified")
    elif given == ["version"] and not _VERSION.fullmatch(value["version"]):
        text = "must be a string compatible with semver.org spec 2.0.0"
        yield invalid_value(f"{where}.version", value["version"], text)


def _member(name: str, where: str) -> Iterator[Cause]:
    """The name of an attribute or a capacity, which may have a domain."""
    domain, slash, identifier = name.rpartition("/")
    if slash:
        yield from dns_subdomain(domain, where)
    yield from _IDENTIFIER(identifier, where)


def _policy(value: Object, capacity: Object, where: str) -> Iterator[Cause]:
    """The rules by which shares of a capacity are rounded."""
    bounds, values = value.get("validRange"), value.get("validValues") or []
    if values and bounds is not None:
        text = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'
        yield forbidden_value(where, text)
    elif (values or bounds is not None) and value.get("default") is None:
        kind = "validValues" if values else "validRange"
        yield required(f"{where}.default", f"required when {kind} is defined")
    elif values:
        yield from _valid_values(value["default"], values, capacity["value"], f"{where}.validValues")
    elif bounds is not None:
        yield from _valid_range(value["default"], bounds, capacity["value"], f"{where}.validRange")


def _valid_values(default: Any, values: list[Any], most: Any, where: str) -> Iterator[Cause]:
    for index, value in enumerate(values):
        if index and amount(values[index - 1]) > amount(value):
            yield invalid_value(f"{where}[{index}]", value, "values must be sorted in ascending order")
    for index, value in enumerate(values):
        if amount(value) > amount(most):
            yield invalid_value(f"{where}[{index}]", value, f"option is larger than capacity value: {most}")
    if amount(default) not in map(amount, values):
        yield invalid_value(where, default, "default value is not valid according to the requestPolicy")


def _valid_range(default: Any, bounds: Object, most: Any, where: str) -> Iterator[Cause]:
    least, largest, step = (bounds.get(name) for name in ("min", "max", "step"))
    if least is None:
        yield required(f"{where}.min", "required when validRange is defined")
        return
    if amount(least) > amount(most):
        yield invalid_value(f"{where}.min", least, f"min is larger than capacity value: {most}")
    if amount(default) < amount(least):
        yield invalid_value(f"{where}.min", default, f"default is less than min: {least}")
    if largest is not None:
        if amount(least) > amount(largest):
            yield invalid_value(f"{where}.max", least, f"min is larger than max: {largest}")
        if amount(largest) > amount(most):
            yield invalid_value(f"{where}.max", largest, f"max is larger than capacity value: {most}")
        if amount(default) > amount(largest):
            yield invalid_value(f"{where}.max", default, f"default is more than max: {largest}")
    for value in (default, largest) if step is not None and amount(step) > 0 else ():
        if value is not None and (amount(value) - amount(least)) % amount(step):
            text = f"value is not a multiple of a given step ({step}) from ({least})"
            yield invalid_value(f"{where}.step", value, text)


def _counters(value: Any, where: str) -> Iterator[Cause]:
    counters = value.get("counters") or {}
    if not counters:
        yield required(f"{where}.counters")
    for name in counters:
        yield from dns_label(name, f"{where}.counters")


_TAINT: Final = RuleTable(("key", Needs(), qualified_name), ("value", label_value), ("effect", Needs(), EFFECTS))
_CONSUMED: Final = RuleTable(("counterSet", Needs(), dns_label), ("", _counters))
_COUNTER_SET: Final = RuleTable(("name", Needs(), dns_label), ("", _counters))


def _device(value: Any, where: str) -> Iterator[Cause]:
    yield from RuleTable(("name", Needs(), dns_label))(value, where)
    for name, one in (value.get("attributes") or {}).items():
        yield from _member(name, f"{where}.attributes")
        yield from _value_of(one, f"{where}.attributes[{name}]")
    for name, one in (value.get("capacity") or {}).items():
        yield from _member(name, f"{where}.capacity")
        policy, here = one.get("requestPolicy"), f"{where}.capacity[{name}].requestPolicy"
        if policy is not None and not value.get("allowMultipleAllocations"):
            yield forbidden_value(here, "allowMultipleAllocations must be true")
        elif policy is not None:
            yield from _policy(policy, one, here)
    yield from RuleTable(("taints[]", _TAINT), ("consumesCounters[]", _CONSUMED))(value, where)


def _nodes_of_devices(spec: Object) -> Iterator[Cause]:
    kinds = ("nodeName", "nodeSelector", "allNodes")
    for index, device in enumerate(spec.get("devices") or ()):
        here, named = f"spec.devices[{index}]", [name for name in kinds if device.get(name)]
        among = (
            "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set"
        )
        if not spec.get("perDeviceNodeSelection") and named:
            text = (
                "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true"
            )
            yield invalid_value(here, None, f"{text} in the ResourceSlice spec")
        elif spec.get("perDeviceNodeSelection") and not named:
            yield required(here, f"{among} to true in the ResourceSlice spec")
        elif spec.get("perDeviceNodeSelection") and len(named) > 1:
            shown = "{" + ", ".join(f"`{name}`" for name in named) + "}"
            yield invalid_value(here, shown, f"{among} to true in the ResourceSlice spec")


def _pool_name(value: Any, where: str) -> Iterator[Cause]:
    for part in value.split("/"):
        yield from dns_subdomain(part, where)


_SLICE: Final = RuleTable(
    ("driver", Needs(), dns_subdomain),
    (
        "pool",
        RuleTable(("name", Needs(), _pool_name), ("generation", at_least(0, "must be greater than or equal to zero"))),
    ),
    ("devices[]", _device),
    ("sharedCounters[]", _COUNTER_SET),
)


def validate_resource_slice(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    pool = spec.get("pool") or {}
    causes = [*_SLICE(spec, "spec")]
    causes += above_zero(pool.get("resourceSliceCount") or 0, "spec.pool.resourceSliceCount")
    nodes = [name for name in _NODES if spec.get(name)]
    listed = ", ".join(f"`{name}`" for name in _NODES)
    if not nodes:
        causes.append(required("spec", f"exactly one of {listed} is required"))
    elif len(nodes) > 1:
        shown = "{" + ", ".join(f"`{name}`" for name in nodes) + "}"
        causes.append(invalid_value("spec", shown, f"exactly one of {listed} is required, but multiple fields are set"))
    causes += _nodes_of_devices(spec)
    if spec.get("sharedCounters") is not None and spec.get("devices") is not None:
        causes.append(invalid_value("spec", "", "only one of `sharedCounters` or `devices` is allowed"))
    for kind in ("devices", "sharedCounters"):
        causes += unique_names(spec.get(kind) or [], f"spec.{kind}")
    if old is not None:
        before = old.get("spec") or {}
        causes += immutable(spec, before, "driver", where="spec")
        causes += immutable(pool, before.get("pool") or {}, "name", where="spec.pool")
    return causes
