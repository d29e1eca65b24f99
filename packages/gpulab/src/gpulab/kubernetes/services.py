"""Services of simulated machines on a real control plane: their addresses, node ports and names.

The embedded cluster's proxy and DNS server serve them, from a copy of the API server's objects. All addresses are those
of this machine's loopback network, as in the embedded cluster. So the API server reaches webhooks in pods by the
address of their Service.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any, Final

from kubekit.api.kinds import built_in
from kubekit.kube import ApiError, Client, NotFound
from tinykube.apiserver.addresses import ServiceRange
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.registry import Registry
from tinykube.controllers.endpoints import EndpointsController
from tinykube.dns import PORT, DNSServer, NameServers, RegistryNames, dns_service, why_not
from tinykube.proxy import ServiceProxy
from tinykube.proxy.clients import FindNode

_MANAGER: Final = "cluster-dns"
_POLL_S: Final = 0.05
_SERVICES: Final = built_in("v1", "Service")
_log = logging.getLogger("gpulab.kubernetes")


class SimulatedServices:
    """Serves the Services of a control plane until `close`.

    Args:
        registry: the copy of the API server's objects.
        addresses: the range of the control plane's Services.
        api_server: the port of the API server on 127.0.0.1.
        find_node: finds the nodes of clients, for Services whose traffic stays on a node.
        dns_port: of the DNS server; kubelets know no other one than 53.
    """

    def __init__(
        self,
        client: Client,
        registry: Registry,
        addresses: ServiceRange,
        api_server: int,
        find_node: FindNode,
        *,
        dns_port: int = PORT,
    ) -> None:
        self._client = client
        self._registry = registry
        self._address = addresses.dns_server
        self._api_server = api_server
        self._dns_port = dns_port
        self._dns = DNSServer(RegistryNames(registry), NameServers((self._address,)))
        self._endpoints = EndpointsController(registry)
        self._proxy = ServiceProxy(registry, find_node)
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        registry.subscribe("events", self._on_event)

    async def open(self) -> None:
        """Serve names, and make the Service by which kubelets find the server; remove it where port 53 is missing."""
        await self._registry.create("endpointslices", "default", _slice_of_api_server(self._api_server))
        service = dns_service(self._address, self._dns_port)
        namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
        try:
            await self._dns.open(self._address, self._dns_port)
        except OSError as error:
            _log.warning("names are not served by DNS: %s", why_not(error, self._address, self._dns_port))
            if self._registry.get("services", namespace, name) is not None:
                await self._client.delete(_SERVICES, name, namespace)
            return
        while True:
            try:
                await self._client.apply(service, _MANAGER)
            except NotFound:  # the API server makes its namespaces shortly after it is ready
                await asyncio.sleep(_POLL_S)
            else:
                break
        _log.info("names are served by DNS address=%s port=%d", self._address, self._dns_port)

    async def run(self) -> None:
        """Carry connections to pods until cancelled."""
        async with asyncio.TaskGroup() as group:
            for worker in self._endpoints.workers():
                group.create_task(worker.run(), name=worker.name)
            group.create_task(self._proxy.run(), name="service proxy")
            group.create_task(self._write_events(), name="service proxy events")

    async def close(self) -> None:
        """Answer no longer. The Service stays, for the next process."""
        await self._dns.close()

    def _on_event(self, event: str, obj: Mapping[str, Any], old: Mapping[str, Any] | None) -> None:
        if event == "ADDED":
            kept = {key: obj["metadata"][key] for key in ("name", "namespace")}
            self._events.put_nowait({**obj, "metadata": kept})

    async def _write_events(self) -> None:
        """Move the proxy's events, which name ports that it cannot serve, to the API server.

        Each leaves the copy, where it would stay for ever: no controller there ends events after an hour.
        """
        while True:
            event = await self._events.get()
            with contextlib.suppress(ApiFailure):
                await self._registry.delete("events", event["metadata"]["namespace"], event["metadata"]["name"])
            try:
                await self._client.create(event)
            except ApiError as error:
                _log.warning("event %s not written: %s", event["reason"], error)


def _slice_of_api_server(port: int) -> dict[str, Any]:
    """Return the endpoints of the Service `kubernetes`, which the API server itself may not write."""
    return {
        "metadata": {"name": "api-server", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }
