"""Validates IPAddresses and ServiceCIDRs."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Any, Final

from tinykube.apiserver.failure import Cause, invalid_value, required
from tinykube.apiserver.validation.names import dns_subdomain
from tinykube.apiserver.validation.tables import ADDRESS_TEXT, Object, address_range, immutable, is_address

_IMMUTABLE: Final = "field is immutable"
_FAMILIES: Final = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"
_MOST: Final = 2


def canonical_address(value: str, where: str) -> Iterator[Cause]:
    """An address in the one form that it has as a name."""
    if not is_address(value):
        yield invalid_value(where, value, ADDRESS_TEXT)
    elif (wanted := str(ip_address(value))) != value:
        yield invalid_value(where, value, f'must be in canonical form ("{wanted}")')


def _segment(value: str, where: str) -> Iterator[Cause]:
    if value in (".", ".."):
        yield invalid_value(where, value, f"may not be '{value}'")
    for character in "/%":
        if character in value:
            yield invalid_value(where, value, f"may not contain '{character}'")


def validate_ip_address(obj: Object, old: Object | None) -> list[Cause]:
    parent, where = (obj.get("spec") or {}).get("parentRef"), "spec.parentRef"
    if old is not None:
        return list(immutable(obj.get("spec") or {}, old.get("spec") or {}, "parentRef", where="spec"))
    if parent is None:
        return [required(where)]
    causes = list(dns_subdomain(parent["group"], f"{where}.group")) if parent.get("group") else []
    for field in ("resource", "name"):
        if not parent.get(field):
            causes.append(required(f"{where}.{field}"))
        else:
            causes += _segment(parent[field], f"{where}.{field}")
    if parent.get("namespace"):
        causes += _segment(parent["namespace"], f"{where}.namespace")
    return causes


def validate_service_cidr(obj: Object, old: Object | None) -> list[Cause]:
    ranges, where = (obj.get("spec") or {}).get("cidrs") or [], "spec.cidrs"
    if old is None:
        return list(_ranges(ranges, where))
    before = (old.get("spec") or {}).get("cidrs") or []
    if len(ranges) == len(before):
        pairs = enumerate(zip(before, ranges, strict=True))
        return [invalid_value(f"{where}[{at}]", new, _IMMUTABLE) for at, (was, new) in pairs if was != new]
    if len(before) == 1 and len(ranges) == _MOST:
        changed = [invalid_value(f"{where}[0]", ranges[0], _IMMUTABLE)] if ranges[0] != before[0] else []
        return [*changed, *_ranges(ranges, where)]
    return [invalid_value(where, ranges, _IMMUTABLE)]


def _ranges(ranges: list[Any], where: str) -> Iterator[Cause]:
    if not ranges:
        yield required(where, "at least one CIDR required")
        return
    if len(ranges) > _MOST:
        yield invalid_value(where, {"CIDRs": ranges}, "may only hold up to 2 values")
        return
    wrong = [cause for at, one in enumerate(ranges) for cause in address_range(one, f"{where}[{at}]")]
    yield from wrong
    if not wrong and len({ip_network(one, strict=False).version for one in ranges}) < len(ranges):
        yield invalid_value(where, ranges, _FAMILIES)
