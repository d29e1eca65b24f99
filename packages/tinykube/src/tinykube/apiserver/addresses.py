"""Addresses and node ports of Services: gives out what is free, and refuses what a Service may not have.

Taken ones are read from the stored Services each time: there are few Services, and no second book can disagree. The
address and node ports of a Service are free again once it is deleted.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tinykube.apiserver.failure import Cause, duplicate, invalid_value, required
from tinykube.apiserver.store import Table

Object = dict[str, Any]

_FIRST: Final = 256  # below are the addresses that are known by heart: 10.96.0.1 and 10.96.0.10
_NODE_PORTS: Final = range(30000, 32768)
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


DEFAULT_RANGE: Final = ServiceRange()


def allocate(obj: Object, old: Object | None, services: Table, given: ServiceRange) -> None:
    """Fill in, in place, `clusterIP` and node ports that a Service needs and does not have.

    An update that leaves them out keeps those of `old`, and gives them back if the new type has none.
    """
    spec, before = obj["spec"], _spec(old)
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
        spec["clusterIP"] = _free_address(services, ipaddress.ip_network(given.network))
    if not spec.get("clusterIPs"):
        spec["clusterIPs"] = [spec["clusterIP"]]
    if spec.get("type") in _WITH_NODE_PORTS:
        _allocate_ports(obj, before, services, given)


def refusals(obj: Object, old: Object | None, services: Table, given: ServiceRange) -> list[Cause]:
    """Return why a Service may not have its address or node ports: outside of the ranges, or another Service's."""
    spec, before = _spec(obj), _spec(old)
    return [*_refused_address(obj, spec, before, services, given), *_refused_ports(obj, spec, before, services)]


def _refused_address(
    obj: Object, spec: Object, before: Object, services: Table, given: ServiceRange
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
    network = ipaddress.ip_network(given.network)
    if found not in network or found in (network.network_address, network.broadcast_address):
        why = f"the provided IP ({address}) is not in the valid range. The range of valid IPs is {given.network}"
    elif any(_spec(other).get("clusterIP") == address for other in _others(obj, services)):
        why = "provided IP is already allocated"
    else:
        return
    yield invalid_value("spec.clusterIPs", listed, f"failed to allocate IP {address}: {why}")


def _refused_ports(obj: Object, spec: Object, before: Object, services: Table) -> Iterator[Cause]:
    taken = {number for other in _others(obj, services) for number in _node_ports(_spec(other))}
    own = _node_ports(before)
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
            ports = f"{_NODE_PORTS.start}-{_NODE_PORTS.stop - 1}"
            text = f"provided port is not in the valid range. The range of valid ports is {ports}"
            yield invalid_value(field, number, text)
        elif number not in own and number in taken:
            yield invalid_value(field, number, "provided port is already allocated")
        seen.add(key)


def _allocate_ports(obj: Object, before: Object, services: Table, given: ServiceRange) -> None:
    spec = obj["spec"]
    used = {port["nodePort"] for port in _ports(spec) if port.get("nodePort")}
    own = {port.get("name"): port.get("nodePort") for port in _ports(before)} if _node_ports(before) else {}
    taken = {number for other in _others(obj, services) for number in _node_ports(_spec(other))}
    start = given.first_node_port - _NODE_PORTS.start
    turned = (*_NODE_PORTS[start:], *_NODE_PORTS[:start])
    free = (number for number in turned if number not in taken and number not in used)
    for port in _ports(spec):
        if not port.get("nodePort"):
            kept = own.get(port.get("name"))
            port["nodePort"] = kept if kept and kept not in used else next(free)
            used.add(port["nodePort"])


def _spec(obj: Object | None) -> Object:
    return (obj or {}).get("spec") or {}


def _ports(spec: Object) -> list[Object]:
    return spec.get("ports") or []


def _node_ports(spec: Object) -> set[int]:
    """Return the node ports that a Service of this spec has taken."""
    if spec.get("type") not in _WITH_NODE_PORTS:
        return set()
    return {port["nodePort"] for port in _ports(spec) if port.get("nodePort")}


def _others(obj: Object, services: Table) -> Iterator[Object]:
    metadata = obj["metadata"]
    own = (metadata.get("namespace"), metadata.get("name"))
    return (entry.obj for entry in services.items.values() if (entry.namespace, entry.name) != own)


def _free_address(services: Table, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> str:
    taken = {(entry.obj.get("spec") or {}).get("clusterIP") for entry in services.items.values()}
    for number in range(_FIRST + len(taken), network.num_addresses - 1):
        if (address := str(network[number])) not in taken:
            return address
    return next(str(host) for host in network.hosts() if str(host) not in taken)
