"""The proxy's shell: follows Services and Endpoints, listens, and carries bytes.

All pods of an embedded cluster share the machine's loopback network, so a Service's address is one of that network too,
and needs no rules in the kernel. Invariants:

- The proxy listens only while a pod is ready. A pod that listens on all addresses of a port could not start otherwise.
- A port that cannot be served gets an event on the Service, once for each reason.
- A stream goes to one pod as a whole, and a connection that breaks on one side breaks on the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import struct
from typing import TYPE_CHECKING, Any, Final

from tinykube.controllers.following import follow
from tinykube.controllers.recorder import Recorder
from tinykube.controllers.worker import KeyWorker
from tinykube.proxy.listening import ALL_ADDRESSES, listening
from tinykube.proxy.routes import ListenAddress, Object, ServiceRoute, not_carried, routes, why_not_served

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

_log = logging.getLogger("tinykube.proxy")
COMPONENT: Final = "service-proxy"
NOT_SERVED: Final = "PortNotServed"
_AGAIN_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 5.0
_PIECE: Final = 64 << 10
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER of zero seconds: the other side sees no regular end, but a reset
_OWN: Final = "default/kubernetes"  # the API server has an address of its own


class ServiceProxy:
    """Serves the Services of a registry until cancelled."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._services = registry.resource("services")
        self._endpoints = registry.resource("endpoints")
        self._recorder = Recorder(registry, COMPONENT)
        self._open: dict[str, dict[ListenAddress, _Listener]] = {}
        self._told: set[tuple[str, str]] = set()
        self._worker: KeyWorker[str] = KeyWorker("service proxy", self._look)

    async def run(self) -> None:
        for resource in (self._services, self._endpoints):
            follow(self._registry, resource, self._changed)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._worker.run(), name="service proxy")
                group.create_task(self._recorder.run(), name="service proxy events")
        finally:
            for listeners in self._open.values():
                for listener in listeners.values():
                    listener.close()

    def _changed(self, event: str, obj: Object, old: Object | None) -> None:
        self._worker.add(f"{obj['metadata']['namespace']}/{obj['metadata']['name']}")

    async def _look(self, key: str) -> float | None:
        """Make the listeners of a Service those that it should have; seconds until the next try where one failed."""
        namespace, name = key.split("/", 1)
        service = self._registry.get(self._services, namespace, name)
        wanted = routes(service, self._registry.get(self._endpoints, namespace, name)) if service is not None else {}
        listeners = self._open.setdefault(key, {})
        for place in listeners.keys() - wanted.keys():
            listeners.pop(place).close()
        again = None
        for place, route in wanted.items():
            if place in listeners:
                listeners[place].route = route
                continue
            listener = _Listener(route)
            try:
                await listener.open(place)
            except OSError as error:
                again = _AGAIN_SECONDS
                if not _is_reached_anyway(error, place, route):
                    self._tell(key, service, why_not_served(error, place))
            else:
                listeners[place] = listener
        if not listeners:
            del self._open[key]
        if service is None:
            self._told = {told for told in self._told if told[0] != key}
            return None
        for text in not_carried(service):
            self._tell(key, service, text)
        return again

    def _tell(self, key: str, service: Any, text: str) -> None:
        if key == _OWN or (key, text) in self._told:
            return
        self._told.add((key, text))
        _log.info("port not served service=%s: %s", key, text)
        self._recorder.record(service, "Service", NOT_SERVED, text, "Warning")


def _is_reached_anyway(error: OSError, place: ListenAddress, route: ServiceRoute) -> bool:
    """Return whether what listens at the address already is what the connection would be carried to.

    A program that listens on all addresses of the pod's port is the one that answers at the pod's own address. One that
    listens on the Service's address alone is another program.
    """
    if error.errno != errno.EADDRINUSE:
        return False
    pods = {pod.host for pod in route.pods if pod.port == place.port}
    found = listening(place.port)
    if place.host in found:
        return place.host in pods
    return bool(pods and found & ALL_ADDRESSES)


class _Listener:
    """One listening socket; `route` may change while it is open."""

    def __init__(self, route: ServiceRoute) -> None:
        self.route = route
        self._server: asyncio.Server | None = None
        self._turn = 0

    async def open(self, place: ListenAddress) -> None:
        """Listen. Raises OSError."""
        self._server = await asyncio.start_server(self._accept, place.host, place.port)

    def close(self) -> None:
        """Take no more connections; those that are open go on."""
        if self._server is not None:
            self._server.close()

    def _pods(self, client: str) -> list[ListenAddress]:
        """Return the pods in the order to try: in turn, or always the same for a client."""
        pods = self.route.pods
        start = hash(client) if self.route.sticky else self._turn
        self._turn += 1
        return [pods[(start + offset) % len(pods)] for offset in range(len(pods))]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        try:
            for pod in self._pods(peer[0] if peer else ""):
                if (to_pod := await _connected(pod)) is not None:
                    await _carry((reader, writer), to_pod)
                    return
        finally:
            writer.close()


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _connected(pod: ListenAddress) -> Stream | None:
    """Return a connection to a pod; None where it does not answer. Only then may the next pod get the stream."""
    with contextlib.suppress(OSError):
        async with asyncio.timeout(_CONNECT_SECONDS):
            return await asyncio.open_connection(pod.host, pod.port)
    return None


async def _carry(client: Stream, pod: Stream) -> None:
    """Carry bytes both ways until both sides have ended."""
    try:
        await asyncio.gather(_one_way(client[0], pod[1]), _one_way(pod[0], client[1]))
    finally:
        pod[1].close()


async def _one_way(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Carry bytes until the source has ended. A connection that breaks breaks the other one too."""
    try:
        while piece := await source.read(_PIECE):
            sink.write(piece)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()
    except OSError:
        with contextlib.suppress(OSError):  # it may be closed already
            sink.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sink.transport.abort()
