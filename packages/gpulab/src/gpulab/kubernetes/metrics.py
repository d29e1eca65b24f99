"""The metrics API (`metrics.k8s.io`) of a real control plane, as an aggregated API server in this process.

The embedded cluster's own part answers, from a copy of the API server's objects and from what kubelets measure. The API
server has authenticated and authorized every user before it asks here, so invariant: only the API server is answered,
by its certificate of the front proxy.

The Service that the APIService names is an `ExternalName`: of other Services the API server wants endpoints, and
endpoints may not have addresses of the loopback network.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from pathlib import Path
from typing import Any, ClassVar, Final

from gpulab.kubernetes import pki
from kubekit.api.kinds import built_in
from kubekit.api.meta import ObjectMeta, Resource, Struct
from kubekit.kube import Client, NotFound, Unreachable
from kubekit.kube.http import HttpPool, read_whole
from tinykube.aggregation.front_proxy import AUTHORITY, CLIENT_NAME
from tinykube.apiserver import discovery
from tinykube.apiserver.asgi import CERTIFICATE_SUBJECT, HttpRequest, HttpResponse
from tinykube.apiserver.certificates import CertificateFiles
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.hooks import SYSTEM, User
from tinykube.apiserver.http import HttpServer, bind
from tinykube.apiserver.registry import Registry
from tinykube.apiserver.rest import Rest
from tinykube.apiserver.streams import UpgradableProtocol
from tinykube.metrics import MetricsService
from tinykube.metrics.service import GROUP, VERSION, reader

NAMESPACE: Final = "kube-system"
NAME: Final = "resource-metrics"
API_SERVICE: Final = f"{VERSION}.{GROUP}"
_CERTIFICATE: Final = NAME
_HOST: Final = "127.0.0.1"
_POLL_S: Final = 0.05
_OK: Final = 200
_TIMEOUT_S: Final = 10.0
_MOST_BYTES: Final = 16 << 20  # of one scrape: 250 pods have 300 KB
_log = logging.getLogger("gpulab.kubernetes")


class RawAPIService(Struct):
    """An APIService with its whole `spec`."""

    RESOURCE: ClassVar[Resource] = built_in("apiregistration.k8s.io/v1", "APIService")

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}


class FrontProxyOnly:
    """The authenticator that lets in the API server alone. TLS has checked who signed its certificate."""

    def authenticate(self, request: HttpRequest) -> User:
        subject = request.scope.get(CERTIFICATE_SUBJECT) or ()
        if ("commonName", CLIENT_NAME) not in {attribute for name in subject for attribute in name}:
            raise ApiFailure(401, "Unauthorized", "Unauthorized")
        return SYSTEM


class MetricsServer:
    """Serves measured use of the nodes and pods in `registry`, and registers itself with the API server."""

    def __init__(self, client: Client, registry: Registry, directory: Path) -> None:
        self._client = client
        self._registry = registry
        self._directory = directory
        self._metrics = MetricsService(registry, self._read)
        registry.hooks.authenticator = FrontProxyOnly()
        registry.hooks.pages.append(self._page)
        pki.server(directory, _CERTIFICATE, (f"{NAME}.{NAMESPACE}.svc",))
        self._to_kubelets = ssl.create_default_context()
        self._to_kubelets.check_hostname = False
        self._to_kubelets.verify_mode = ssl.CERT_NONE
        caller = directory / pki.KUBELETS_CALLER
        self._to_kubelets.load_cert_chain(f"{caller}.crt", f"{caller}.key")
        self._http: HttpServer | None = None

    async def open(self) -> None:
        """Listen on a free port, and register it. A metrics-server of the user's own stays registered."""
        await self._metrics.furnish()
        files = CertificateFiles(
            self._directory / AUTHORITY,
            self._directory / f"{_CERTIFICATE}.crt",
            self._directory / f"{_CERTIFICATE}.key",
        )
        self._http = HttpServer(Rest(self._registry), bind(_HOST, 0), files, protocol=UpgradableProtocol)
        await self._http.start()
        try:
            standing = (await self._client.get(RawAPIService, API_SERVICE)).spec.get("service") or {}
        except NotFound:
            standing = {}
        if standing and (standing.get("namespace"), standing.get("name")) != (NAMESPACE, NAME):
            _log.info("%s stays with the Service %s/%s", API_SERVICE, standing.get("namespace"), standing.get("name"))
            return
        for obj in self._objects(self._http.port):
            await _apply(self._client, obj)
        _log.info("measured use is served address=%s:%d", _HOST, self._http.port)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.stop()

    def _objects(self, port: int) -> list[dict[str, Any]]:
        bundle = base64.b64encode((self._directory / "ca.crt").read_bytes()).decode()
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"name": "https", "port": port}]},
        }
        spec = {
            "group": GROUP,
            "version": VERSION,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {"namespace": NAMESPACE, "name": NAME, "port": port},
            "caBundle": bundle,
        }
        api_service = {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": API_SERVICE},
            "spec": spec,
        }
        return [service, api_service, reader()]

    async def _read(self, node: dict[str, Any]) -> str:
        """Return the text of a node's /metrics/resource, by the kubelet: the API server proxies to no loopback address.

        Like the API server, this does not verify certificates of kubelets. So the answer is a stranger's: it is not
        followed elsewhere, has an end, and occupies no thread. Raises KeyError, OSError and ValueError.
        """
        status = node["status"]
        host = next(one["address"] for one in status["addresses"] if one["type"] == "InternalIP")
        port = status["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        head = f"GET /metrics/resource HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
        pool = HttpPool(host, port, tls=self._to_kubelets)
        try:
            async with (
                asyncio.timeout(_TIMEOUT_S),
                pool.stream(head.encode(), timeout=_TIMEOUT_S, idle=_TIMEOUT_S) as (answer, read),
            ):
                if answer.status != _OK:
                    raise OSError(f"status {answer.status} from {pool.place}")
                return (await read_whole(read, _MOST_BYTES, pool.place)).decode()
        except Unreachable as error:
            raise OSError(str(error)) from error
        finally:
            await pool.aclose()

    async def _page(self, request: HttpRequest) -> HttpResponse | None:
        infos = [kind.info for kind in self._registry.kinds if kind.info.group == GROUP]
        answer = discovery.respond(request.path, request.header(b"accept"), infos, address=request.header(b"host"))
        return None if answer is None else HttpResponse(_OK, answer.body, answer.content_type)


async def _apply(client: Client, obj: dict[str, Any]) -> None:
    while True:
        try:
            await client.apply(obj, NAME)
        except NotFound:  # the API server makes its namespaces shortly after it is ready
            await asyncio.sleep(_POLL_S)
        else:
            return
