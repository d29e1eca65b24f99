"""Addresses and node ports of Services, given out at creation from what is free now.

Taken ones are read from the stored Services each time: there are few Services, and no second book can disagree.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Final

import msgspec

from tinykube.apiserver.store import Table

Object = dict[str, Any]

_FIRST: Final = 256  # below are the addresses that are known by heart: 10.96.0.1 and 10.96.0.10
_NODE_PORTS: Final = range(30000, 32768)


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


def allocate(obj: Object, services: Table, given: ServiceRange) -> None:
    """Fill in, in place, `clusterIP` and node ports that a Service needs and does not have."""
    spec = obj["spec"]
    if spec.get("type") == "ExternalName":
        return
    if not spec.get("clusterIP"):
        spec["clusterIP"] = _free_address(services, ipaddress.ip_network(given.network))
    if not spec.get("clusterIPs"):
        spec["clusterIPs"] = [spec["clusterIP"]]
    if spec.get("type") in ("NodePort", "LoadBalancer"):
        taken = {port.get("nodePort") for entry in services.items.values() for port in _ports(entry.obj)}
        start = given.first_node_port - _NODE_PORTS.start
        turned = (*_NODE_PORTS[start:], *_NODE_PORTS[:start])
        free = (number for number in turned if number not in taken)
        for port in _ports(obj):
            if not port.get("nodePort"):
                port["nodePort"] = next(free)


def _ports(obj: Object) -> list[Object]:
    return (obj.get("spec") or {}).get("ports") or []


def _free_address(services: Table, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> str:
    taken = {(entry.obj.get("spec") or {}).get("clusterIP") for entry in services.items.values()}
    for number in range(_FIRST + len(taken), network.num_addresses - 1):
        if (address := str(network[number])) not in taken:
            return address
    return next(str(host) for host in network.hosts() if str(host) not in taken)
