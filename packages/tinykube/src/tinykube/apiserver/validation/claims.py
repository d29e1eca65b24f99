"""Validates ResourceClaims, their templates and DeviceClasses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from kubekit.cel import CelProgram, CelSyntaxError
from kubekit.cel.result_types import result_type
from tinykube.apiserver.failure import Cause, duplicate, forbidden_value, invalid_value, required
from tinykube.apiserver.validation.names import dns_label, dns_subdomain, label_value, qualified_name
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


EFFECTS: Final = one_of("NoExecute", "NoSchedule", "None")


def _tolerated(value: Any, where: str) -> Iterator[Cause]:
    if value.get("value") and value.get("operator") == "Exists":
        yield invalid_value(f"{where}.value", value["value"], "must be empty for operator `Exists`")
    elif value.get("value"):
        yield from label_value(value["value"], f"{where}.value")


_TOLERATION: Final = RuleTable(
    ("key", qualified_name), ("operator", Needs(), one_of("Equal", "Exists")), ("", _tolerated), ("effect", EFFECTS)
)
_REQUESTED: Final = RuleTable(
    ("deviceClassName", Needs(), dns_subdomain),
    ("selectors[]", _SELECTOR),
    ("", _count),
    ("allocationMode", one_of("All", "ExactCount")),
    ("tolerations[]", _TOLERATION),
)
_ALTERNATIVE: Final = RuleTable(("name", Needs(), dns_label), ("", _REQUESTED))
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
        yield from RuleTable(("firstAvailable[]", _ALTERNATIVE))(value, where)
        yield from unique_names(first, f"{where}.firstAvailable")
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


def _parameters(value: Any, where: str) -> Iterator[Cause]:
    if value.get("parameters") is None:
        yield required(f"{where}.parameters")


_CONFIG: Final = RuleTable(("opaque", Needs(), RuleTable(("driver", Needs(), dns_subdomain), ("", _parameters))))


def unique_names(items: list[Object], where: str) -> Iterator[Cause]:
    """Find the objects of a list whose names earlier ones have."""
    yield from _unique([one.get("name") or "" for one in items], where)


def _unique(names: list[str], where: str) -> Iterator[Cause]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield duplicate(f"{where}[{index}]", name)


def validate_claim_spec(spec: Object, field: str) -> Iterator[Cause]:
    devices = spec.get("devices") or {}
    requests = devices.get("requests") or []
    where = f"{field}.devices"
    yield from RuleTable(("requests[]", _request))(devices, where)
    yield from unique_names(requests, f"{where}.requests")
    for kind, check in (("constraints", _constraint), ("config", _CONFIG)):
        for index, item in enumerate(devices.get(kind) or ()):
            for at, name in enumerate(item.get("requests") or ()):
                yield from _named(name, requests, f"{where}.{kind}[{index}].requests[{at}]")
            yield from _unique(item.get("requests") or [], f"{where}.{kind}[{index}].requests")
            yield from check(item, f"{where}.{kind}[{index}]")


def validate_resource_claim(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    if old is None:
        return list(validate_claim_spec(spec, "spec"))
    return [*immutable(obj, old, "spec"), *_status(obj.get("status") or {}, old.get("status") or {})]


def _status(status: Object, before: Object) -> Iterator[Cause]:
    if status.get("reservedFor") and status.get("allocation") is None:
        yield forbidden_value("status.reservedFor", "may not be specified when `allocated` is not set")
    if status.get("allocation") is not None and before.get("allocation") is not None:
        yield from immutable(status, before, "allocation", where="status")


def validate_claim_template(obj: Object, old: Object | None) -> list[Cause]:
    if old is not None:
        return list(immutable(obj, old, "spec"))
    return list(validate_claim_spec((obj.get("spec") or {}).get("spec") or {}, "spec.spec"))


_CLASS: Final = RuleTable(("selectors[]", _SELECTOR), ("config[]", _CONFIG))


def validate_device_class(obj: Object, old: Object | None) -> list[Cause]:
    return list(_CLASS(obj.get("spec") or {}, "spec"))
