"""Decides where the proxy listens for a Service or a host port, and which pods it carries connections to. Pure.

A Service without a ready pod has no routes: a connection is refused, as by kube-proxy. Pods that are to end get
connections while no other pod is ready, as by kube-proxy too. Traffic policies are those of kube-proxy on a machine
that is all nodes at once: its own address, 127.0.0.1, is that of no node, and leads to the pods of all.
"""

from __future__ import annotations

import errno
import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from tinykube.controllers.pods import is_ready

LOCALHOST: Final = "127.0.0.1"
CARRIED: Final = ("TCP", "UDP")
_AFFINITY_SECONDS: Final = 10800
Object = Mapping[str, Any]


class ListenAddress(NamedTuple):
    """An address and port of this machine."""

    host: str
    port: int
    protocol: str = "TCP"


class ServiceRoute(msgspec.Struct, frozen=True):
    """The ready pods behind a port of a Service.

    A client gets the same pod while less than `sticky_seconds` are between its connections; 0: pods take turns. With
    `by_node`, a client gets only pods of its own node, by the node's name.
    """

    pods: tuple[ListenAddress, ...]
    sticky_seconds: int = 0
    by_node: Mapping[str, tuple[ListenAddress, ...]] | None = None

    def of_node(self, name: str) -> ServiceRoute:
        """Return the route of clients on a node: without pods where the node has none."""
        return ServiceRoute((self.by_node or {}).get(name, ()), self.sticky_seconds)


class LocalHealth(msgspec.Struct, frozen=True):
    """The answer of a node to a load balancer: how many ready pods of a Service the node has."""

    namespace: str
    service: str
    ready: int


def routes(
    service: Object, slices: Iterable[Object], nodes: Mapping[str, str] = MappingProxyType({})
) -> dict[ListenAddress, ServiceRoute]:
    """Return the routes of a Service, from its EndpointSlices. `nodes` are the addresses of the nodes, by name.

    Node ports are served on 127.0.0.1 too.
    """
    spec = service["spec"]
    if spec.get("type") == "ExternalName":
        return {}
    found: dict[ListenAddress, ServiceRoute] = {}
    pieces = [one for one in slices if one.get("addressType") == "IPv4"]
    for port in spec.get("ports") or ():
        protocol = port.get("protocol") or "TCP"
        pods = _usable(pieces, port.get("name") or "", protocol)
        if not pods or protocol not in CARRIED:
            continue
        by_node = _usable_by_node(pieces, port.get("name") or "", protocol) if _is_local(spec) else {}
        places = _places(spec, port, protocol, pods, by_node, nodes)
        # A program at the Service's own address needs no proxy.
        found |= {place: reached for place, reached in places if reached.pods and place not in reached.pods}
    return found


def health_checks(
    service: Object, slices: Iterable[Object], nodes: Mapping[str, str]
) -> dict[ListenAddress, LocalHealth]:
    """Return what load balancers are answered on each node, for a Service with `healthCheckNodePort`."""
    port = service["spec"].get("healthCheckNodePort")
    if not port:
        return {}
    ready: dict[str, set[str]] = {}
    for endpoint in (one for piece in slices for one in piece.get("endpoints") or ()):
        if (endpoint.get("conditions") or {}).get("ready") is not False and (address := nodes.get(_node_of(endpoint))):
            ready.setdefault(address, set()).add(endpoint["addresses"][0])
    namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
    return {
        ListenAddress(address, port): LocalHealth(namespace, name, len(ready.get(address, ())))
        for address in sorted({*nodes.values()} - {LOCALHOST})
    }


def node_address(node: Object) -> str:
    """Return the address of a node that other nodes reach it by; empty for none.

    NB: the API server takes any text of a kubelet there. A name would be looked up, and 0.0.0.0 is every interface.
    """
    listed = (node.get("status") or {}).get("addresses") or ()
    found = next((str(one["address"]) for one in listed if one["type"] == "InternalIP"), "")
    address = _parsed(found)
    return "" if address is None or address.is_unspecified else found


def host_ports(pod: Object) -> list[Object]:
    """Return the ports of a pod's containers that are to be ports of its node too."""
    spec = pod["spec"]
    if spec.get("hostNetwork"):
        return []
    sidecars = [one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"]
    containers = (*(spec.get("containers") or ()), *sidecars)
    return [port for container in containers for port in container.get("ports") or () if port.get("hostPort")]


def host_port_routes(pod: Object) -> dict[ListenAddress, ServiceRoute]:
    """Return the routes of a pod's host ports, from when it is ready on: its programs take their own ports first."""
    status = pod.get("status") or {}
    if not status.get("podIP") or not status.get("hostIP") or not is_ready(pod):
        return {}
    found = {}
    for port in host_ports(pod):
        protocol = port.get("protocol") or "TCP"
        host = _parsed(port.get("hostIP") or "0.0.0.0")
        if host is None:
            continue
        place = ListenAddress(status["hostIP"] if host.is_unspecified else str(host), port["hostPort"], protocol)
        to = ListenAddress(status["podIP"], port["containerPort"], protocol)
        if protocol in CARRIED and place != to:
            found[place] = ServiceRoute((to,))
    return found


def _places(
    spec: Object,
    port: Object,
    protocol: str,
    pods: tuple[ListenAddress, ...],
    by_node: Mapping[str, tuple[ListenAddress, ...]],
    nodes: Mapping[str, str],
) -> Iterator[tuple[ListenAddress, ServiceRoute]]:
    """Yield where a port of a Service is reached, and the pods that a connection there may get."""
    sticky = _sticky_seconds(spec)
    everywhere = ServiceRoute(pods, sticky)

    def from_outside(address: str) -> ServiceRoute:
        names = [name for name, own in nodes.items() if own == address]
        if spec.get("externalTrafficPolicy") != "Local" or address == LOCALHOST or not names:
            return everywhere
        return ServiceRoute(tuple(pod for name in names for pod in by_node.get(name, ())), sticky)

    if spec.get("clusterIP") not in (None, "", "None"):
        inside = everywhere
        if spec.get("internalTrafficPolicy") == "Local":
            inside = ServiceRoute(tuple(pod for local in by_node.values() for pod in local) or pods, sticky, by_node)
        yield ListenAddress(spec["clusterIP"], port["port"], protocol), inside
        for address in spec.get("externalIPs") or ():
            yield ListenAddress(address, port["port"], protocol), from_outside(address)
    if port.get("nodePort"):
        for address in sorted({LOCALHOST, *nodes.values()}):
            yield ListenAddress(address, port["nodePort"], protocol), from_outside(address)


def _is_local(spec: Object) -> bool:
    """Return whether connections of a Service stay on a node, from inside or from outside."""
    return "Local" in (spec.get("internalTrafficPolicy"), spec.get("externalTrafficPolicy"))


def _sticky_seconds(spec: Object) -> int:
    if spec.get("sessionAffinity") != "ClientIP":
        return 0
    config = (spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}
    return int(config.get("timeoutSeconds") or _AFFINITY_SECONDS)


def not_carried(ports: Iterable[Object], field: str = "port") -> list[str]:
    """Return which ports no route is made for, with the reason. Their number is in `field`."""
    protocols = [
        f"port {port[field]}: {port['protocol']} is not carried to pods here, only TCP and UDP are"
        for port in ports
        if (port.get("protocol") or "TCP") not in CARRIED
    ]
    hosts = [
        f"port {port[field]}: hostIP {port['hostIP'][:100]!r} is no IP address"
        for port in ports
        if port.get("hostIP") and _parsed(port["hostIP"]) is None
    ]
    return protocols + hosts


def _parsed(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address; None for another text, such as a name: to look up a tenant's name holds up all Services."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


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
        case errno.EADDRNOTAVAIL:
            return f"{place.host} is no address of this machine: add it to an interface, or take it out of externalIPs"
        case _:
            return f"port {place.port} of {place.host} cannot be served: {error.strerror}"


def _usable_by_node(slices: list[Object], port: str, protocol: str) -> dict[str, tuple[ListenAddress, ...]]:
    """Return the pods behind a port of each node that has one: pods that are to end count on each node for itself."""
    local: dict[str, list[Object]] = {}
    for piece in slices:
        endpoints: dict[str, list[Object]] = {}
        for endpoint in piece.get("endpoints") or ():
            endpoints.setdefault(_node_of(endpoint), []).append(endpoint)
        for name, own in endpoints.items():
            local.setdefault(name, []).append({**piece, "endpoints": own})
    found = {name: _usable(local[name], port, protocol) for name in sorted(local) if name}
    return {name: pods for name, pods in found.items() if pods}


def _node_of(endpoint: Object) -> str:
    return endpoint.get("nodeName") or ""


def _usable(slices: Iterable[Object], port: str, protocol: str) -> tuple[ListenAddress, ...]:
    """Return the pods behind a port: those that are ready; without any, those that serve until they end."""
    ready: dict[ListenAddress, None] = {}
    ending: dict[ListenAddress, None] = {}
    for piece in slices:
        numbers = [
            found["port"]
            for found in piece.get("ports") or ()
            if (found.get("name") or "") == port and (found.get("protocol") or "TCP") == protocol and found.get("port")
        ]
        for endpoint in piece.get("endpoints") or ():
            conditions = endpoint.get("conditions") or {}
            if conditions.get("ready") is not False:
                into = ready
            elif conditions.get("serving") and conditions.get("terminating"):
                into = ending
            else:
                continue
            into |= {ListenAddress(endpoint["addresses"][0], number, protocol): None for number in numbers}
    return tuple(ready or ending)
