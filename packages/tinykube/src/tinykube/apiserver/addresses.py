"""Addresses and node ports of Services, given out at creation from what is free now.

Taken ones are read from the stored Services each time: there are few Services, and no second book can disagree.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Final

from tinykube.apiserver.store import Table

Object = dict[str, Any]

_NETWORK: Final = ipaddress.ip_network("10.96.0.0/16")
_FIRST: Final = 256  # below are the addresses that are known by heart: 10.96.0.1 and 10.96.0.10
_NODE_PORTS: Final = range(30000, 32768)


def allocate(obj: Object, services: Table) -> None:
    """Fill in, in place, `clusterIP` and node ports that a Service needs and does not have."""
    spec = obj["spec"]
    if spec.get("type") == "ExternalName":
        return
    if not spec.get("clusterIP"):
        spec["clusterIP"] = _free_address(services)
    if not spec.get("clusterIPs"):
        spec["clusterIPs"] = [spec["clusterIP"]]
    if spec.get("type") in ("NodePort", "LoadBalancer"):
        taken = {port.get("nodePort") for entry in services.items.values() for port in _ports(entry.obj)}
        free = (number for number in _NODE_PORTS if number not in taken)
        for port in _ports(obj):
            if not port.get("nodePort"):
                port["nodePort"] = next(free)


def _ports(obj: Object) -> list[Object]:
    return (obj.get("spec") or {}).get("ports") or []


def _free_address(services: Table) -> str:
    taken = {(entry.obj.get("spec") or {}).get("clusterIP") for entry in services.items.values()}
    for number in range(_FIRST + len(taken), _NETWORK.num_addresses - 1):
        if (address := str(_NETWORK[number])) not in taken:
            return address
    return next(str(host) for host in _NETWORK.hosts() if str(host) not in taken)
