"""Validates Services, Endpoints and EndpointSlices."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any, Final

from tinykube.apiserver.addresses import is_reached_from_outside
from tinykube.apiserver.failure import (
    Cause,
    duplicate,
    forbidden_value,
    invalid_value,
    not_supported,
    required,
)
from tinykube.apiserver.validation.containers import named_port
from tinykube.apiserver.validation.names import (
    dns_label,
    dns_subdomain,
    qualified_name,
    validate_labels,
)
from tinykube.apiserver.validation.tables import (
    Needs,
    Object,
    RuleTable,
    address,
    address_range,
    immutable,
    one_of,
    outside_address,
    pod_address,
    port_number,
    unique,
)

PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
_TYPES: Final = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_A_DAY: Final = 86400


def _port_value(value: Any, where: str) -> Iterator[Cause]:
    """A port that an absent number counts as zero."""
    yield from port_number(value.get("port") or 0, f"{where}.port")


_SERVICE_PORT: Final = RuleTable(
    ("name", dns_label),
    ("", _port_value),
    ("protocol", Needs(), one_of(*PROTOCOLS)),
    ("targetPort", named_port),
    ("appProtocol", qualified_name),
)


def _selector(value: Any, where: str) -> list[Cause]:
    return validate_labels(value, where)


def _family(value: Any, where: str) -> Iterator[Cause]:
    for index, family in enumerate(value):
        if family not in ("IPv4", "IPv6"):
            yield not_supported(f"{where}[{index}]", family, ("IPv4", "IPv6"))
        elif family in value[:index]:
            yield duplicate(f"{where}[{index}]", family)


_SERVICE: Final = RuleTable(
    ("ports[]", _SERVICE_PORT),
    ("selector", _selector),
    ("sessionAffinity", one_of("ClientIP", "None")),
    ("externalIPs[]", address, outside_address),
    ("ipFamilies", _family),
    ("ipFamilyPolicy", one_of("PreferDualStack", "RequireDualStack", "SingleStack")),
    ("internalTrafficPolicy", one_of("Cluster", "Local")),
    ("trafficDistribution", one_of("PreferClose", "PreferSameZone", "PreferSameNode")),
)


def validate_service(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    if old is not None and spec == old.get("spec"):
        return []
    kind, ports = spec.get("type"), spec.get("ports") or []
    causes: list[Cause] = []
    if kind not in _TYPES:
        causes.append(not_supported("spec.type", kind, _TYPES))
    if not ports and kind != "ExternalName" and spec.get("clusterIP") != "None":
        causes.append(required("spec.ports"))
    if kind == "ExternalName":
        causes += _external_name(spec.get("externalName") or "")
    if len(ports) > 1:
        causes += [required(f"spec.ports[{at}].name") for at, port in enumerate(ports) if not port.get("name")]
    causes += _SERVICE(spec, "spec")
    causes += unique("name")(ports, "spec.ports")
    causes += _equal_ports(ports)
    causes += _affinity(spec)
    causes += _by_type(spec)
    return causes


def _external_name(name: str) -> Iterator[Cause]:
    if not name:
        yield required("spec.externalName")
    else:
        yield from dns_subdomain(name.removesuffix("."), "spec.externalName")


def _equal_ports(ports: list[Object]) -> Iterator[Cause]:
    seen = set()
    for index, port in enumerate(ports):
        key = (port.get("protocol"), port.get("port"))
        if key in seen:
            whole = {
                "Name": "",
                "Protocol": key[0],
                "AppProtocol": None,
                "Port": key[1],
                "TargetPort": 0,
                "NodePort": 0,
            }
            yield duplicate(f"spec.ports[{index}]", whole)
        seen.add(key)


def _affinity(spec: Object) -> Iterator[Cause]:
    seconds = ((spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}).get("timeoutSeconds")
    if spec.get("sessionAffinity") == "ClientIP" and seconds is not None and not 0 < seconds <= _A_DAY:
        where = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
        yield invalid_value(where, seconds, f"must be greater than 0 and less than {_A_DAY}")


def _by_type(spec: Object) -> Iterator[Cause]:
    """Find what only services of other types may have."""
    kind = spec.get("type")
    if spec.get("loadBalancerSourceRanges"):
        where = "spec.LoadBalancerSourceRanges"  # as the real server spells it
        if kind != "LoadBalancer":
            yield forbidden_value(where, "may only be used when `type` is 'LoadBalancer'")
        else:
            for index, network in enumerate(spec["loadBalancerSourceRanges"]):
                yield from address_range(network, f"{where}[{index}]")
    if spec.get("loadBalancerClass") and kind != "LoadBalancer":
        yield forbidden_value("spec.loadBalancerClass", "may only be used when `type` is 'LoadBalancer'")
    if spec.get("allocateLoadBalancerNodePorts") is not None and kind != "LoadBalancer":
        yield forbidden_value("spec.allocateLoadBalancerNodePorts", "may only be used when `type` is 'LoadBalancer'")
    policy = spec.get("externalTrafficPolicy")
    if policy and not is_reached_from_outside(spec):
        text = "may only be set for externally-accessible services"
        yield invalid_value("spec.externalTrafficPolicy", policy, text)
    elif policy and policy not in ("Cluster", "Local"):
        yield not_supported("spec.externalTrafficPolicy", policy, ("Cluster", "Local"))


def _endpoint_address(value: Any, where: str) -> Iterator[Cause]:
    found = list(address(value.get("ip") or "", f"{where}.ip"))
    if found:
        yield from found
        yield invalid_value(f"{where}.ip", value.get("ip"), "must be a valid IP address")
    else:
        yield from pod_address(value["ip"], f"{where}.ip")


def _has_addresses(value: Any, where: str) -> Iterator[Cause]:
    if not value.get("addresses") and not value.get("notReadyAddresses"):
        yield required(where, "must specify `addresses` or `notReadyAddresses`")


_ENDPOINT_PORT: Final = RuleTable(("", _port_value), ("protocol", one_of(*PROTOCOLS)))
_SUBSET: Final = RuleTable(
    ("", _has_addresses),
    ("addresses[]", _endpoint_address),
    ("notReadyAddresses[]", _endpoint_address),
    ("ports[]", _ENDPOINT_PORT),
)


def validate_endpoints(obj: Object, old: Object | None) -> list[Cause]:
    return list(RuleTable(("subsets[]", _SUBSET))(obj, ""))


_FAMILIES: Final = ("FQDN", "IPv4", "IPv6")
_SLICE: Final = RuleTable(("addressType", Needs(), one_of(*_FAMILIES)))
_SLICE_PORT: Final = RuleTable(("protocol", one_of(*PROTOCOLS)), ("appProtocol", qualified_name))


def validate_endpoint_slice(obj: Object, old: Object | None) -> list[Cause]:
    kind = obj.get("addressType")
    causes = [*_SLICE(obj, "")]
    for index, endpoint in enumerate(obj.get("endpoints") or ()):
        where = f"endpoints[{index}].addresses"
        if not endpoint.get("addresses"):
            causes.append(required(where, "must contain at least 1 address"))
        for at, one in enumerate(endpoint.get("addresses") or ()):
            causes += _of_family(one, kind, where, at)
    ports = obj.get("ports") or []
    causes += RuleTable(("ports[]", _SLICE_PORT))(obj, "")
    names = [port.get("name") or "" for port in ports]
    causes += [duplicate(f"ports[{at}].name", name) for at, name in enumerate(names) if name in names[:at]]
    return causes if old is None else [*causes, *immutable(obj, old, "addressType")]


def _of_family(value: str, kind: Any, where: str, at: int) -> Iterator[Cause]:
    if kind == "FQDN":
        yield from dns_subdomain(value, f"{where}[{at}]")
    elif kind in ("IPv4", "IPv6"):
        wrong = list(address(value, f"{where}[{at}]"))
        yield from wrong
        if not wrong:
            if ip_address(value).version != int(kind[-1]):
                yield invalid_value(where, value, f"must be an {kind} address")
            yield from pod_address(value, f"{where}[{at}]")
