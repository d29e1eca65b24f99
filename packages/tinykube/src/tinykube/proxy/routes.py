"""Decides where the proxy listens for a Service, and which pods it carries connections to. Pure.

A Service without a ready pod has no routes: a connection is refused, as by kube-proxy.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

NODE_ADDRESS: Final = "127.0.0.1"  # of every node of an embedded cluster
Object = Mapping[str, Any]


class ListenAddress(NamedTuple):
    """An address and port of this machine."""

    host: str
    port: int


class ServiceRoute(msgspec.Struct, frozen=True):
    """The ready pods behind a port of a Service; `sticky`: a client gets the same pod each time."""

    pods: tuple[ListenAddress, ...]
    sticky: bool = False


def routes(service: Object, endpoints: Object | None) -> dict[ListenAddress, ServiceRoute]:
    """Return the routes of a Service, from its Endpoints of the same name."""
    spec = service["spec"]
    if spec.get("type") == "ExternalName":
        return {}
    found = {}
    sticky = spec.get("sessionAffinity") == "ClientIP"
    for port in spec.get("ports") or ():
        pods = _ready(endpoints, port.get("name") or "")
        if not pods or (port.get("protocol") or "TCP") != "TCP":
            continue
        if spec.get("clusterIP") not in (None, "", "None"):
            found[ListenAddress(spec["clusterIP"], port["port"])] = ServiceRoute(pods, sticky)
        if port.get("nodePort"):
            found[ListenAddress(NODE_ADDRESS, port["nodePort"])] = ServiceRoute(pods, sticky)
    return found


def not_carried(service: Object) -> list[str]:
    """Return the ports that no route is made for, with the reason."""
    return [
        f"port {port['port']}: {port['protocol']} is not carried to pods here, only TCP is"
        for port in service["spec"].get("ports") or ()
        if (port.get("protocol") or "TCP") != "TCP"
    ]


def why_not_served(error: OSError, place: ListenAddress) -> str:
    """Return why the proxy cannot listen there, with the cure."""
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return (
                f"port {place.port} of {place.host} needs root on this machine: use kubectl port-forward, a node port, "
                "or a port from 1024 on"
            )
        case errno.EADDRINUSE:
            return f"port {place.port} of {place.host} is in use by another program on this machine"
        case _:
            return f"port {place.port} of {place.host} cannot be served: {error.strerror}"


def _ready(endpoints: Object | None, port: str) -> tuple[ListenAddress, ...]:
    return tuple(
        ListenAddress(address["ip"], found["port"])
        for subset in (endpoints or {}).get("subsets") or ()
        for found in subset.get("ports") or ()
        if (found.get("name") or "") == port
        for address in subset.get("addresses") or ()
    )
