"""Addresses and node ports of Services: gives out what is free, and refuses what a Service may not have.

Taken ones are read from the stored Services each time: there are few Services, and no second book can disagree. The
address and node ports of a Service are free again once it is deleted. An IPAddress that names no Service takes its
address too.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tinykube.apiserver.failure import Cause, duplicate, forbidden_value, invalid_value, required
from tinykube.apiserver.store import Table

Object = dict[str, Any]

_FIRST: Final = 256  # below are the well-known addresses: 10.96.0.1 and 10.96.0.10
_NODE_PORTS: Final = range(30000, 32768)
_OUTSIDE: Final = (
    f"provided port is not in the valid range. The range of valid ports is {_NODE_PORTS.start}-{_NODE_PORTS.stop - 1}"
)
_WITH_NODE_PORTS: Final = ("NodePort", "LoadBalancer")
_OF_ADDRESS: Final = ("clusterIP", "clusterIPs")


class ServiceRange(msgspec.Struct, frozen=True):
    """The range of the addresses and node ports of Services.

    Args:
        network: in CIDR form.
        first_node_port: the search for a free node port begins there, so that clusters of one machine differ.
    """

    network: str = "10.96.0.0/16"
    first_node_port: int = _NODE_PORTS.start

    @property
    def api_server(self) -> str:
        """Return the address of the Service `kubernetes`: the first one."""
        return str(ipaddress.ip_network(self.network)[1])

    @property
    def dns_server(self) -> str:
        """Return the address of the Service `kube-dns`: the tenth one."""
        return str(ipaddress.ip_network(self.network)[10])


DEFAULT_RANGE: Final = ServiceRange()


class AddressBook(msgspec.Struct, frozen=True):
    """The stored Services and IPAddresses."""

    services: Table
    addresses: Table

    def holds(self, address: str) -> bool:
        """Return whether an address is that of something else than a Service."""
        found = self.addresses.get("", address)
        parent = _spec(found.obj).get("parentRef") or {} if found is not None else {}
        return found is not None and (parent.get("group") or "", parent.get("resource")) != ("", "services")


def allocate(obj: Object, old: Object | None, book: AddressBook, service_range: ServiceRange) -> None:
    """Fill in, in place, `clusterIP` and node ports that a Service needs and does not have.

    An update that leaves them out keeps those of `old`, and gives them back if the new type has none.
    """
    spec, before = obj["spec"], _spec(old)
    _drop_fields_of_other_types(spec, before)
    if spec.get("type") not in _WITH_NODE_PORTS:
        kept = _node_ports(before)
        for port in _ports(spec):
            if port.get("nodePort") in kept:
                del port["nodePort"]
    if spec.get("type") == "ExternalName":
        for field in _OF_ADDRESS:
            if field in before and spec.get(field) == before[field]:
                del spec[field]
        return
    if not spec.get("clusterIP") and before.get("clusterIP"):
        spec["clusterIP"] = before["clusterIP"]
    if not spec.get("clusterIP") and not spec.get("clusterIPs"):
        spec["clusterIP"] = _free_address(book, ipaddress.ip_network(service_range.network))
    if not spec.get("clusterIPs"):
        spec["clusterIPs"] = [spec["clusterIP"]]
    if spec.get("type") in _WITH_NODE_PORTS:
        _allocate_ports(obj, before, book.services, service_range)


def is_reached_from_outside(spec: Object) -> bool:
    """Return whether a Service has addresses outside of the cluster, so that it has an external traffic policy."""
    return spec.get("type") in _WITH_NODE_PORTS or (spec.get("type") == "ClusterIP" and bool(spec.get("externalIPs")))


def has_health_check(spec: Object) -> bool:
    """Return whether load balancers ask the nodes of a Service for their pods."""
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def _drop_fields_of_other_types(spec: Object, before: Object) -> None:
    """Drop what a Service had by its old type and the caller did not change."""
    dropped = []
    if has_health_check(before) and not has_health_check(spec):
        dropped.append("healthCheckNodePort")
    if before.get("type") == "LoadBalancer" != spec.get("type"):
        dropped += ["allocateLoadBalancerNodePorts", "loadBalancerClass"]
    if is_reached_from_outside(before) and not is_reached_from_outside(spec):
        dropped.append("externalTrafficPolicy")
    for field in dropped:
        if spec.get(field) == before.get(field):
            spec.pop(field, None)


def refusals(obj: Object, old: Object | None, book: AddressBook, service_range: ServiceRange) -> list[Cause]:
    """Return why a Service may not have its address or node ports: outside of the ranges, or another Service's."""
    spec, before = _spec(obj), _spec(old)
    return [
        *_refused_address(obj, spec, before, book, service_range),
        *_refused_ports(obj, spec, before, book.services),
    ]


def _refused_address(
    obj: Object, spec: Object, before: Object, book: AddressBook, service_range: ServiceRange
) -> Iterator[Cause]:
    address, listed = spec.get("clusterIP"), spec.get("clusterIPs") or []
    if spec.get("type") == "ExternalName":
        if address or listed:
            text = "Forbidden: may not be set for ExternalName services"
            yield Cause("FieldValueForbidden", text, "spec.clusterIPs")
        return
    if not address:
        yield invalid_value("spec.clusterIPs", listed, "must be empty when `clusterIP` is not specified")
        return
    if not listed:
        yield required("spec.clusterIPs")
    elif listed[0] != address:
        yield invalid_value("spec.clusterIPs", listed, "first value must match `clusterIP`")
    if address == before.get("clusterIP"):
        return
    if before.get("clusterIP"):
        yield invalid_value("spec.clusterIPs[0]", listed or [address], "may not change once set")
        return
    if address == "None":
        return
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        text = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
        yield invalid_value("spec.clusterIPs[0]", address, text)
        return
    network = ipaddress.ip_network(service_range.network)
    if found not in network or found in (network.network_address, network.broadcast_address):
        why = (
            f"the provided IP ({address}) is not in the valid range. The range of valid IPs is {service_range.network}"
        )
    elif book.holds(address) or any(_spec(other).get("clusterIP") == address for other in _others(obj, book.services)):
        why = "provided IP is already allocated"
    else:
        return
    yield invalid_value("spec.clusterIPs", listed, f"failed to allocate IP {address}: {why}")


def _refused_ports(obj: Object, spec: Object, before: Object, services: Table) -> Iterator[Cause]:
    taken = {number for other in _others(obj, services) for number in _taken(_spec(other))}
    taken |= _taken(before)
    own = _node_ports(before)
    yield from _refused_health_check(spec, before)
    seen: set[tuple[str, int]] = set()
    for index, port in enumerate(_ports(spec)):
        field, number = f"spec.ports[{index}].nodePort", port.get("nodePort")
        if not number:
            continue
        key = (port.get("protocol") or "TCP", number)
        if spec.get("type") == "ClusterIP":
            yield Cause("FieldValueForbidden", "Forbidden: may not be used when `type` is 'ClusterIP'", field)
        elif key in seen:
            yield duplicate(field, number)
        elif number not in own and number not in _NODE_PORTS:
            yield invalid_value(field, number, _OUTSIDE)
        elif number not in own and number in taken:
            yield invalid_value(field, number, "provided port is already allocated")
        seen.add(key)


def _refused_health_check(spec: Object, before: Object) -> Iterator[Cause]:
    field, port = "spec.healthCheckNodePort", spec.get("healthCheckNodePort") or 0
    if not has_health_check(spec):
        if port:
            text = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
            yield invalid_value(field, port, text)
    elif has_health_check(before):
        if port != before.get("healthCheckNodePort"):
            yield forbidden_value(field, "field is immutable")
    elif not 0 < port < 65536:
        yield invalid_value(field, port, "must be between 1 and 65535, inclusive")


def health_check_problem(obj: Object, old: Object | None, services: Table) -> str:
    """Return why a Service that is valid cannot have its port for health checks; empty if the Service can.

    NB: a real server reports this as an internal error, since the port is taken after the validation.
    """
    spec, before = _spec(obj), _spec(old)
    port = spec.get("healthCheckNodePort")
    if not has_health_check(spec) or port == before.get("healthCheckNodePort"):
        return ""
    taken = {number for other in _others(obj, services) for number in _taken(_spec(other))}
    if port not in _NODE_PORTS:
        why = _OUTSIDE
    elif port in taken | _taken(before) | _node_ports(spec):
        why = "provided port is already allocated"
    else:
        return ""
    return f"failed to allocate requested HealthCheck NodePort {port}: {why}"


def _allocate_ports(obj: Object, before: Object, services: Table, service_range: ServiceRange) -> None:
    spec = obj["spec"]
    used = {port["nodePort"] for port in _ports(spec) if port.get("nodePort")}
    own = {port.get("name"): port.get("nodePort") for port in _ports(before)} if _node_ports(before) else {}
    taken = {number for other in _others(obj, services) for number in _taken(_spec(other))}
    if has_health_check(spec) and has_health_check(before) and not spec.get("healthCheckNodePort"):
        spec["healthCheckNodePort"] = before.get("healthCheckNodePort")
    taken |= {port for port in (spec.get("healthCheckNodePort"), before.get("healthCheckNodePort")) if port}
    start = service_range.first_node_port - _NODE_PORTS.start
    turned = (*_NODE_PORTS[start:], *_NODE_PORTS[:start])
    free = (number for number in turned if number not in taken and number not in used)
    for port in _ports(spec):
        if not port.get("nodePort"):
            kept = own.get(port.get("name"))
            if kept and kept not in used:
                port["nodePort"] = kept
            elif spec.get("type") != "LoadBalancer" or spec.get("allocateLoadBalancerNodePorts") is not False:
                port["nodePort"] = next(free)
            else:
                continue
            used.add(port["nodePort"])
    if has_health_check(spec) and not spec.get("healthCheckNodePort"):
        spec["healthCheckNodePort"] = next(free)


def _spec(obj: Object | None) -> Object:
    return (obj or {}).get("spec") or {}


def _ports(spec: Object) -> list[Object]:
    return spec.get("ports") or []


def _node_ports(spec: Object) -> set[int]:
    """Return the node ports that a Service of this spec has taken."""
    if spec.get("type") not in _WITH_NODE_PORTS:
        return set()
    return {port["nodePort"] for port in _ports(spec) if port.get("nodePort")}


def _taken(spec: Object) -> set[int]:
    """Return the node ports that a Service has taken, with that of its health check."""
    health = spec.get("healthCheckNodePort")
    return _node_ports(spec) | ({health} if health and has_health_check(spec) else set())


def _others(obj: Object, services: Table) -> Iterator[Object]:
    metadata = obj["metadata"]
    own = (metadata.get("namespace"), metadata.get("name"))
    return (entry.obj for entry in services.items.values() if (entry.namespace, entry.name) != own)


def _free_address(book: AddressBook, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> str:
    taken = {_spec(entry.obj).get("clusterIP") for entry in book.services.items.values()}
    above = (str(network[number]) for number in range(_FIRST + len(taken), network.num_addresses - 1))
    every = (str(host) for host in network.hosts())
    return next(one for one in itertools.chain(above, every) if one not in taken and not book.holds(one))
