"""Validates Ingresses and NetworkPolicies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any, Final

from tinykube.apiserver.failure import Cause, forbidden_value, invalid_value, required
from tinykube.apiserver.validation.containers import named_port
from tinykube.apiserver.validation.names import dns_label, dns_subdomain, validate_selector
from tinykube.apiserver.validation.tables import (
    Needs,
    Object,
    RuleTable,
    address_range,
    is_address,
    one_of,
)

_WILDCARD: Final = r"\*\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_WILDCARD_TEXT: Final = (
    "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of "
    "lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', "
    f"regex used for validation is '{_WILDCARD}')"
)


def _host(value: Any, where: str) -> Iterator[Cause]:
    if is_address(value):
        yield invalid_value(where, value, "must be a DNS name, not an IP address")
    elif "*" in value:
        if not re.fullmatch(_WILDCARD, value):
            yield invalid_value(where, value, _WILDCARD_TEXT)
    else:
        yield from dns_subdomain(value, where)


def _backend(value: Any, where: str) -> Iterator[Cause]:
    service = value.get("service")
    if service is None and value.get("resource") is None:
        yield invalid_value(where, "", "resource or service backend is required")
    if service is not None and value.get("resource") is not None:
        yield invalid_value(where, "", "cannot set both resource and service backends")
    if service is None:
        return
    if not service.get("name"):
        yield required(f"{where}.service.name")
    else:
        yield from dns_label(service["name"], f"{where}.service.name")
    port = service.get("port") or {}
    if port.get("name") and port.get("number"):
        yield invalid_value(where, "", "cannot set both port name & port number")
    elif port.get("name") or port.get("number"):
        yield from named_port(port.get("name") or port["number"], f"{where}.service.port")
    else:
        yield required(where, "port name or number is required")


_MISPLACED: Final = ("//", "/./", "/../", "%2f", "%2F")
_LAST: Final = ("/..", "/.")


def _path(value: Any, where: str) -> Iterator[Cause]:
    kind, path = value.get("pathType"), value.get("path") or ""
    if kind is None:
        yield required(f"{where}.pathType", "pathType must be specified")
    elif kind not in ("Exact", "ImplementationSpecific", "Prefix"):
        yield from one_of("Exact", "ImplementationSpecific", "Prefix")(kind, f"{where}.pathType")
    elif kind != "ImplementationSpecific" or path:
        if not path.startswith("/"):
            yield invalid_value(f"{where}.path", path, "must be an absolute path")
        elif kind != "ImplementationSpecific":
            for part in _MISPLACED:
                if part in path:
                    yield invalid_value(f"{where}.path", path, f"must not contain '{part}'")
            for part in _LAST:
                if path.endswith(part):
                    yield invalid_value(f"{where}.path", path, f"cannot end with '{part}'")
    yield from _backend(value.get("backend") or {}, f"{where}.backend")


_RULE: Final = RuleTable(("host", _host), ("http", RuleTable(("paths", Needs()), ("paths[]", _path))))
_INGRESS: Final = RuleTable(
    ("tls[]", RuleTable(("hosts[]", _host))),
    ("defaultBackend", _backend),
    ("rules[]", _RULE),
    ("ingressClassName", dns_subdomain),
)


def validate_ingress(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = [*_INGRESS(spec, "spec")]
    if not spec.get("rules") and not spec.get("defaultBackend"):
        causes.append(invalid_value("spec", None, "either `defaultBackend` or `rules` must be specified"))
    return causes


def _selector(value: Any, where: str) -> list[Cause]:
    return validate_selector(value, where)


def _block(value: Any, where: str) -> Iterator[Cause]:
    cidr = value.get("cidr") or ""
    if not cidr:
        yield required(f"{where}.cidr")
        return
    wrong = list(address_range(cidr, f"{where}.cidr"))
    yield from wrong
    for index, hole in enumerate(value.get("except") or ()):
        here = f"{where}.except[{index}]"
        found = list(address_range(hole, here))
        yield from found
        if not wrong and not found and not _is_within(hole, cidr):
            yield invalid_value(here, hole, "must be a strict subset of `cidr`")


def _is_within(inner: str, outer: str) -> bool:
    one, other = ip_network(inner, strict=False), ip_network(outer, strict=False)
    return one.version == other.version and one != other and one.subnet_of(other)  # type: ignore[arg-type]


def _peer(value: Any, where: str) -> Iterator[Cause]:
    others = [name for name in ("podSelector", "namespaceSelector") if value.get(name) is not None]
    for name in others:
        yield from validate_selector(value[name], f"{where}.{name}")
    block = value.get("ipBlock")
    if block is not None:
        yield from _block(block, f"{where}.ipBlock")
        if others:
            yield forbidden_value(where, "may not specify both ipBlock and another peer")
    elif not others:
        yield required(where, "must specify a peer")


def _end(value: Any, where: str) -> Iterator[Cause]:
    port, end = value.get("port"), value.get("endPort")
    if end is None:
        return
    if port is None:
        yield required(f"{where}.port", "must be specified when `endPort` is specified")
    elif isinstance(port, str):
        yield invalid_value(f"{where}.endPort", end, "may not be specified when `port` is non-numeric")
    elif end < port:
        yield invalid_value(f"{where}.endPort", port, "must be greater than or equal to `port`")


_PORT: Final = RuleTable(("protocol", one_of("TCP", "UDP", "SCTP")), ("port", named_port), ("", _end))
_POLICY: Final = RuleTable(
    ("podSelector", _selector),
    ("ingress[]", RuleTable(("ports[]", _PORT), ("from[]", _peer))),
    ("egress[]", RuleTable(("ports[]", _PORT), ("to[]", _peer))),
    ("policyTypes[]", one_of("Ingress", "Egress")),
)


def validate_network_policy(obj: Object, old: Object | None) -> list[Cause]:
    return list(_POLICY(obj.get("spec") or {}, "spec"))
