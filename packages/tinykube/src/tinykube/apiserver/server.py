"""The whole API server: store, registry, extensions, and the port.

Order of a start: the port is taken, what was stored is read, the hooks are set, the objects that every cluster has are
written, and only then requests are answered. Stopping ends watches first and closes the journal last.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kubekit.kube.clock import SystemClock
from tinykube.apiserver import certificates
from tinykube.apiserver.addresses import DEFAULT_RANGE, ServiceRange
from tinykube.apiserver.compaction import compact_by_clock
from tinykube.apiserver.extensions import Extensions, furnish, install
from tinykube.apiserver.http import HttpServer, bind
from tinykube.apiserver.journal import SQLiteJournal
from tinykube.apiserver.registry import Registry
from tinykube.apiserver.rest import Rest
from tinykube.apiserver.streams import UpgradableProtocol
from tinykube.apiserver.token_key import KEY_FILE, TokenKey

log = logging.getLogger("tinykube.apiserver")

OBJECTS_FILE = "objects.sqlite"
Object = dict[str, Any]


class ApiServer:
    """An embedded API server in this event loop.

    `registry` is for writers in the same process, `extensions.identity.add(token, user)` lets clients in, `url` and
    `authority` (the CA's PEM file) are what a kubeconfig needs. Made by `start`.
    """

    def __init__(
        self, registry: Registry, extensions: Extensions, http: HttpServer, host: str, authority: Path
    ) -> None:
        self.registry = registry
        self.extensions = extensions
        self.port = http.port
        self.url = f"https://{_address(host, http.port)}"
        self.authority = authority
        self._http = http
        self._journal: SQLiteJournal | None = None
        self._compaction: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        pki: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        data: Path | None = None,
        clock: Callable[[], float] = time.time,
        service_range: ServiceRange = DEFAULT_RANGE,
    ) -> ApiServer:
        """Start and answer.

        `pki` is the directory of the certificates and of the key that signs service account tokens, made if missing.
        With `data` (a directory) objects outlive the process. Services get addresses of `service_range`. Raises
        Terminal for a port in use, a key that cannot be read or data that another server has open.
        """
        sock = bind(host, port)
        try:
            paths = certificates.ensure(pki, (host, service_range.api_server))
            registry = Registry(clock=clock, service_range=service_range)
            journal = _restored(registry, data) if data is not None else None
            token_key = TokenKey.ensure(pki / KEY_FILE)
            extensions = install(
                registry, token_key=token_key, clock=clock, address=_address(host, sock.getsockname()[1])
            )
            await furnish(registry)
            http = HttpServer(Rest(registry), sock, paths, protocol=UpgradableProtocol)
            server = cls(registry, extensions, http, host, paths.authority)
            server._journal = journal
            await server._publish(host, service_range.api_server)
        except BaseException:
            sock.close()
            raise
        await http.start()
        server._compaction = asyncio.create_task(
            compact_by_clock(registry.store, SystemClock()), name="compaction of the store"
        )
        # Stored objects are trees without cycles: looking through all of them again and again is half the cost of
        # every write. The objects of now are never looked at again, later ones seldom.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        return server

    async def _publish(self, host: str, address: str) -> None:
        """The `kubernetes` Service, by which programs find the API server; its endpoint follows host and port."""
        service: Object = {
            "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {
                "clusterIP": address,
                "ports": [{"name": "https", "port": 443, "targetPort": self.port}],
            },
        }
        if self.registry.get("services", "default", "kubernetes") is None:
            await self.registry.create("services", "default", service)
        port: Object = {"name": "https", "port": self.port, "protocol": "TCP"}
        endpoints: Object = {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": {"name": "kubernetes", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
            "subsets": [{"addresses": [{"ip": host}], "ports": [port]}],
        }
        endpoint_slice: Object = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [host], "conditions": {"ready": True}}],
            "ports": [port],
        }
        for resource, body in (("endpoints", endpoints), ("endpointslices", endpoint_slice)):
            await self.registry.patch(resource, "default", "kubernetes", body, "apply", manager="tinykube-apiserver")

    async def stop(self) -> None:
        if self._compaction is not None:
            self._compaction.cancel()
        await self._http.stop()
        self.extensions.close()
        if self._journal is not None:
            self._journal.close()
        log.info("stopped")


def _address(host: str, port: int) -> str:
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def _restored(registry: Registry, data: Path) -> SQLiteJournal:
    journal = SQLiteJournal(data / OBJECTS_FILE)
    objects = list(journal.load())
    registry.restore(journal, objects, journal.version())
    if objects:
        log.info("restored %d objects from %s", len(objects), journal.path)
    return journal
