"""The proxy's shell: follows Services, EndpointSlices and pods with host ports, and listens.

All pods of an embedded cluster share the machine's loopback network, so a Service's address is one of that network too,
and needs no rules in the kernel. Invariants:

- The proxy listens only while a pod is ready. A pod that listens on all addresses of a port could not start otherwise.
- A port that cannot be served gets an event on the Service or pod, once for each reason.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tinykube.controllers.following import follow
from tinykube.controllers.recorder import Recorder
from tinykube.controllers.slicesofservices import SlicesOfServices
from tinykube.controllers.worker import KeyWorker
from tinykube.proxy.affinity import PodChooser
from tinykube.proxy.clients import FindNode, on_no_node
from tinykube.proxy.datagrams import DatagramListener
from tinykube.proxy.healthchecks import HealthListener
from tinykube.proxy.listening import ALL_ADDRESSES, listening
from tinykube.proxy.routes import (
    ListenAddress,
    LocalHealth,
    Object,
    ServiceRoute,
    health_checks,
    host_port_routes,
    host_ports,
    node_address,
    not_carried,
    routes,
    why_not_served,
)
from tinykube.proxy.streams import StreamListener

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

_log = logging.getLogger("tinykube.proxy")
COMPONENT: Final = "service-proxy"
NOT_SERVED: Final = "PortNotServed"
_AGAIN_SECONDS: Final = 5.0
_OWN: Final = "Service/default/kubernetes"  # the API server has an address of its own
_SERVICE: Final = "Service"
_POD: Final = "Pod"


Listener = StreamListener | DatagramListener | HealthListener


class ServiceProxy:
    """Serves the Services and host ports of a registry until cancelled. Keys are `KIND/namespace/name`.

    Args:
        find_node: finds the nodes of clients, for Services whose traffic stays on a node.
    """

    def __init__(self, registry: Registry, find_node: FindNode = on_no_node) -> None:
        self._find_node = find_node
        self._registry = registry
        self._resources = {_SERVICE: registry.resource("services"), _POD: registry.resource("pods")}
        self._recorder = Recorder(registry, COMPONENT)
        self._open: dict[str, dict[ListenAddress, Listener]] = {}
        self._choosers: dict[tuple[str, ListenAddress], PodChooser] = {}
        self._nodes: dict[str, str] = {}  # name -> address
        self._told: set[tuple[str, str]] = set()
        self._worker: KeyWorker[str] = KeyWorker("service proxy", self._look)

    async def run(self) -> None:
        self._slices = SlicesOfServices(self._registry, lambda key: self._worker.add("/".join((_SERVICE, *key))))
        follow(self._registry, self._registry.resource("nodes"), self._on_node)
        follow(self._registry, self._resources[_SERVICE], self._on_service)
        follow(self._registry, self._resources[_POD], self._on_pod)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._worker.run(), name="service proxy")
                group.create_task(self._recorder.run(), name="service proxy events")
        finally:
            for listeners in self._open.values():
                for listener in listeners.values():
                    listener.close()

    def _on_service(self, event: str, obj: Object, old: Object | None) -> None:
        self._worker.add(_key(_SERVICE, obj))

    def _on_pod(self, event: str, obj: Object, old: Object | None) -> None:
        if host_ports(obj):
            self._worker.add(_key(_POD, obj))

    def _on_node(self, event: str, obj: Object, old: Object | None) -> None:
        name, address = obj["metadata"]["name"], "" if event == "DELETED" else node_address(obj)
        if self._nodes.get(name, "") == address:
            return
        self._nodes.pop(name, None)
        if address:
            self._nodes[name] = address
        for service in self._registry.list(self._resources[_SERVICE]):
            spec = service["spec"]
            if spec.get("externalIPs") or any(port.get("nodePort") for port in spec.get("ports") or ()):
                self._worker.add(_key(_SERVICE, service))

    def _wanted(self, kind: str, obj: Object | None) -> Mapping[ListenAddress, ServiceRoute | LocalHealth]:
        if obj is None:
            return {}
        if kind == _POD:
            return host_port_routes(obj)
        slices = list(self._slices.get((obj["metadata"]["namespace"], obj["metadata"]["name"])))
        return {**health_checks(obj, slices, self._nodes), **routes(obj, slices, self._nodes)}

    def _listener(self, key: str, place: ListenAddress, route: ServiceRoute | LocalHealth) -> Listener:
        if isinstance(route, LocalHealth):
            return HealthListener(route)
        protocol = StreamListener if place.protocol == "TCP" else DatagramListener
        chooser = self._choosers.setdefault((key, place), PodChooser(time.monotonic))
        return protocol(route, chooser, self._find_node)

    async def _look(self, key: str) -> float | None:
        """Make the listeners those that there should be; seconds until the next try where one failed."""
        kind, namespace, name = key.split("/", 2)
        obj = self._registry.get(self._resources[kind], namespace, name)
        wanted = self._wanted(kind, obj)
        listeners = self._open.setdefault(key, {})
        for place in list(listeners):
            if (
                isinstance(listeners[place], HealthListener) != isinstance(wanted.get(place), LocalHealth)
                or place not in wanted
            ):
                listeners.pop(place).close()
        again = None
        for place, route in wanted.items():
            if place in listeners:
                listeners[place].route = route
                continue
            listener = self._listener(key, place, route)
            try:
                await listener.open(place)
            except OSError as error:
                again = _AGAIN_SECONDS
                if not _is_reached_anyway(error, place, route):
                    self._tell(key, obj, why_not_served(error, place))
            else:
                listeners[place] = listener
        if not listeners:
            del self._open[key]
        if obj is None:
            self._told = {told for told in self._told if told[0] != key}
            self._choosers = {at: chooser for at, chooser in self._choosers.items() if at[0] != key}
            return None
        ports = (obj["spec"].get("ports") or (), "port") if kind == _SERVICE else (host_ports(obj), "hostPort")
        for text in not_carried(*ports):
            self._tell(key, obj, text)
        return again

    def _tell(self, key: str, obj: Any, text: str) -> None:
        if key == _OWN or (key, text) in self._told:
            return
        self._told.add((key, text))
        _log.info("port not served of=%s: %s", key, text)
        self._recorder.record(obj, key.partition("/")[0], NOT_SERVED, text, "Warning")


def _key(kind: str, obj: Object) -> str:
    return f"{kind}/{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def _is_reached_anyway(error: OSError, place: ListenAddress, route: ServiceRoute | LocalHealth) -> bool:
    """Return whether what listens at the address already is what the connection would be carried to.

    A program that listens on all addresses of the pod's port is the one that answers at the pod's own address. One that
    listens on the Service's address alone is another program. Where traffic stays on a node,
    such a program takes connections of other nodes too.
    """
    if isinstance(route, LocalHealth) or route.by_node is not None or error.errno != errno.EADDRINUSE:
        return False
    pods = {pod.host for pod in route.pods if pod.port == place.port}
    found = listening(place.port, place.protocol)
    if place.host in found:
        return place.host in pods
    return bool(pods and found & ALL_ADDRESSES)
