"""Carries datagrams of UDP: those of one client (address and port) go to one pod, and its answers come back.

A client that was silent for two minutes, or whose pod is gone, gets another pod. The kernel forgets a flow of
kube-proxy after the same time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, Final

from tinykube.proxy.affinity import PodChooser
from tinykube.proxy.clients import FindNode
from tinykube.proxy.routes import ListenAddress, ServiceRoute

_IDLE_SECONDS: Final = 120.0
_MOST_CLIENTS: Final = 512  # each has a socket: the oldest one is closed for one more
_MOST_WAITING: Final = 64  # datagrams of a client whose socket is not open yet
Client = tuple[Any, ...]


class DatagramListener(asyncio.DatagramProtocol):
    """One listening socket; `route` may change while it is open."""

    def __init__(self, route: ServiceRoute, chooser: PodChooser, find_node: FindNode) -> None:
        self.route = route
        self._chooser = chooser
        self._find_node = find_node
        self._place = ListenAddress("", 0)
        self._transport: asyncio.DatagramTransport | None = None
        self._flows: OrderedDict[Client, _Flow] = OrderedDict()

    async def open(self, place: ListenAddress) -> None:
        """Listen. Raises OSError."""
        self._place = place
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(place.host, place.port))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        for flow in list(self._flows.values()):
            flow.close()

    def datagram_received(self, data: bytes, addr: Client) -> None:
        flow = self._flows.get(addr)
        if flow is not None and flow.pod is not None and flow.pod not in self.route.pods:
            flow.close()
            flow = None
        if flow is None:
            pod = self._next_pod(self.route, addr[0]) if self.route.by_node is None else None
            flow = self._flows[addr] = _Flow(self, addr, pod)
            if len(self._flows) > _MOST_CLIENTS:
                next(iter(self._flows.values())).close()
        self._flows.move_to_end(addr)
        flow.send(data)

    async def local_pod(self, client: Client) -> ListenAddress | None:
        """Return a pod of the client's node; None where there is none."""
        node = await self._find_node((client[0], client[1]), self._place)
        route = self.route.of_node(node)
        return self._next_pod(route, f"{node} {client[0]}") if route.pods else None

    def _next_pod(self, route: ServiceRoute, client: str) -> ListenAddress:
        pod = self._chooser.order(route, client)[0]
        self._chooser.took(route, client, pod)
        return pod

    def answer(self, data: bytes, client: Client) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(data, client)

    def ended(self, flow: _Flow) -> None:
        if self._flows.get(flow.client) is flow:
            del self._flows[flow.client]


class _Flow(asyncio.DatagramProtocol):
    """The socket by which the datagrams of a client reach its pod. `pod` is None until the client's node is known."""

    def __init__(self, listener: DatagramListener, client: Client, pod: ListenAddress | None) -> None:
        self.client = client
        self.pod = pod
        self._listener = listener
        self._waiting: list[bytes] = []
        self._transport: asyncio.DatagramTransport | None = None
        self._loop = asyncio.get_running_loop()
        self._used = self._loop.time()
        self._timer = self._loop.call_later(_IDLE_SECONDS, self._idle)
        self._opening = self._loop.create_task(self._open())

    async def _open(self) -> None:
        try:
            if self.pod is None:
                self.pod = await self._listener.local_pod(self.client)
            if self.pod is None:
                self.close()
                return
            address = (self.pod.host, self.pod.port)
            self._transport, _ = await self._loop.create_datagram_endpoint(lambda: self, remote_addr=address)
        except OSError:
            self.close()
            return
        for data in self._waiting:
            self._transport.sendto(data)

    def send(self, data: bytes) -> None:
        self._used = self._loop.time()
        if self._transport is not None:
            self._transport.sendto(data)
        elif len(self._waiting) < _MOST_WAITING:
            self._waiting.append(data)

    def datagram_received(self, data: bytes, addr: Client) -> None:
        self._used = self._loop.time()
        self._listener.answer(data, self.client)

    def error_received(self, exc: Exception) -> None:
        """Give up: the pod does not listen, and the client's next datagram may find another one."""
        self.close()

    def _idle(self) -> None:
        rest = self._used + _IDLE_SECONDS - self._loop.time()
        if rest > 0:
            self._timer = self._loop.call_later(rest, self._idle)
        else:
            self.close()

    def close(self) -> None:
        self._timer.cancel()
        if self._transport is not None:
            self._transport.close()
        elif self._opening is not asyncio.current_task():
            self._opening.cancel()
        self._listener.ended(self)
