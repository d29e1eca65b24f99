"""Validates ResourceClaims, their templates, DeviceClasses and ResourceSlices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from kubekit.cel import CelProgram, CelSyntaxError
from kubekit.cel.result_types import result_type
from tinykube.apiserver.failure import Cause, duplicate, invalid_value, required
from tinykube.apiserver.validation.names import dns_label, dns_subdomain
from tinykube.apiserver.validation.tables import (
    Needs,
    Object,
    RuleTable,
    above_zero,
    immutable,
    one_of,
)

_DEVICE: Final = {"device": {"driver": "string", "allowMultipleAllocations": "bool"}}


def _expression(value: Any, where: str) -> Iterator[Cause]:
    source = value.get("expression") or ""
    if not source:
        yield required(f"{where}.expression")
        return
    try:
        CelProgram(source, ("device",))
    except CelSyntaxError as problem:
        yield invalid_value(f"{where}.expression", source, f"compilation failed: {problem}")
        return
    found = result_type(source, _DEVICE)
    if found not in ("", "bool"):
        yield invalid_value(f"{where}.expression", source, f"must evaluate to bool or the unknown type, not {found}")


_SELECTOR: Final = RuleTable(("cel", Needs(), _expression))


def _count(value: Any, where: str) -> Iterator[Cause]:
    count = value.get("count")
    if value.get("allocationMode") == "All":
        if count:
            yield invalid_value(f"{where}.count", count, "must not be specified when allocationMode is 'All'")
    elif value.get("allocationMode") == "ExactCount":
        yield from above_zero(count or 0, f"{where}.count")


_REQUESTED: Final = RuleTable(
    ("deviceClassName", Needs(), dns_subdomain),
    ("selectors[]", _SELECTOR),
    ("", _count),
    ("allocationMode", one_of("All", "ExactCount")),
)
_BOTH: Final = "exactly one of `exactly` or `firstAvailable` is required"


def _request(value: Any, where: str) -> Iterator[Cause]:
    if not value.get("name"):
        yield required(f"{where}.name")
    else:
        yield from dns_label(value["name"], f"{where}.name")
    exactly, first = value.get("exactly"), value.get("firstAvailable")
    if exactly is not None and first:
        yield invalid_value(where, None, f"{_BOTH}, but multiple fields are set")
    elif exactly is not None:
        yield from _REQUESTED(exactly, f"{where}.exactly")
    elif first:
        for index, one in enumerate(first):
            yield from _REQUESTED(one, f"{where}.firstAvailable[{index}]")
    else:
        yield required(where, _BOTH)


def _named(name: str, requests: list[Object], where: str) -> Iterator[Cause]:
    """A name of a request, or of one of its alternatives."""
    known = {one.get("name") for one in requests}
    known |= {f"{one.get('name')}/{sub.get('name')}" for one in requests for sub in one.get("firstAvailable") or ()}
    if name not in known:
        text = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
        yield invalid_value(where, name, text)


def _attribute(value: Any, where: str) -> Iterator[Cause]:
    if "/" not in value:
        yield invalid_value(where, value, "a fully qualified name must be a domain and a name separated by a slash")


def _constraint(value: Any, where: str) -> Iterator[Cause]:
    if not value.get("matchAttribute") and not value.get("distinctAttribute"):
        text = 'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set'
        yield required(where, text)
    yield from RuleTable(("matchAttribute", _attribute), ("distinctAttribute", _attribute))(value, where)


_CONFIG: Final = RuleTable(("opaque", Needs(), RuleTable(("driver", Needs(), dns_subdomain))))


def _unique_names(items: list[Object], where: str) -> Iterator[Cause]:
    names = [one.get("name") for one in items]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield duplicate(f"{where}[{index}]", name)


def validate_claim_spec(spec: Object, field: str) -> Iterator[Cause]:
    devices = spec.get("devices") or {}
    requests = devices.get("requests") or []
    where = f"{field}.devices"
    yield from RuleTable(("requests[]", _request))(devices, where)
    yield from _unique_names(requests, f"{where}.requests")
    for kind, check in (("constraints", _constraint), ("config", _CONFIG)):
        for index, item in enumerate(devices.get(kind) or ()):
            for at, name in enumerate(item.get("requests") or ()):
                yield from _named(name, requests, f"{where}.{kind}[{index}].requests[{at}]")
            yield from check(item, f"{where}.{kind}[{index}]")


def validate_resource_claim(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    if old is None:
        return list(validate_claim_spec(spec, "spec"))
    return list(immutable(obj, old, "spec"))


def validate_claim_template(obj: Object, old: Object | None) -> list[Cause]:
    if old is not None:
        return list(immutable(obj, old, "spec"))
    return list(validate_claim_spec((obj.get("spec") or {}).get("spec") or {}, "spec.spec"))


_CLASS: Final = RuleTable(("selectors[]", _SELECTOR), ("config[]", _CONFIG))


def validate_device_class(obj: Object, old: Object | None) -> list[Cause]:
    return list(_CLASS(obj.get("spec") or {}, "spec"))


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


def _device(value: Any, where: str) -> Iterator[Cause]:
    yield from RuleTable(("name", Needs(), dns_label))(value, where)
    for name, one in (value.get("attributes") or {}).items():
        yield from _value_of(one, f"{where}.attributes[{name}]")


_SLICE: Final = RuleTable(
    ("driver", Needs(), dns_subdomain), ("pool", RuleTable(("name", Needs()))), ("devices[]", _device)
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
    causes += _unique_names(spec.get("devices") or [], "spec.devices")
    if old is not None:
        before = old.get("spec") or {}
        causes += immutable(spec, before, "driver", where="spec")
        causes += immutable(pool, before.get("pool") or {}, "name", where="spec.pool")
    return causes
