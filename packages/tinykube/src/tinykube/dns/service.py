"""The Service `kube-dns`, by which kubelets know that the cluster has a DNS server and where.

The server listens at the Service's own address, so the Service exists if and only if the server does: where port 53 may
not be had, an event of the namespace kube-system gives the reason, and kubelets write names to /etc/hosts instead.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Any, Final

from tinykube.apiserver.failure import ApiFailure
from tinykube.controllers.recorder import Recorder
from tinykube.dns.forwarding import NameServers
from tinykube.dns.names import RegistryNames
from tinykube.dns.server import PORT, DNSServer

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

_log = logging.getLogger("tinykube.dns")
NAMESPACE: Final = "kube-system"
NAME: Final = "kube-dns"
COMPONENT: Final = "cluster-dns"
NOT_SERVED: Final = "PortNotServed"
_PORTS: Final = (("dns", "UDP"), ("dns-tcp", "TCP"))
_MEANWHILE: Final = "the names of Services are in the /etc/hosts of pods"
_LABELS: Final = {"k8s-app": NAME, "kubernetes.io/cluster-service": "true"}


class ClusterDNS:
    """Serves the names of a registry at `address`."""

    def __init__(self, registry: Registry, address: str, port: int = PORT) -> None:
        self._registry = registry
        self._address = address
        self._port = port
        self._recorder = Recorder(registry, COMPONENT)
        self._server = DNSServer(RegistryNames(registry), NameServers((address,)))

    async def open(self) -> bool:
        """Listen, and make the Service; remove it where that is not possible. Return whether names are served."""
        try:
            await self._server.open(self._address, self._port)
        except OSError as error:
            await self._tell(why_not(error, self._address, self._port))
            return False
        try:
            await self._publish()
        except ApiFailure as failure:
            await self._server.close()
            await self._tell(f"the Service {NAMESPACE}/{NAME} cannot be written: {failure}; {_MEANWHILE}")
            return False
        _log.info("names are served by DNS address=%s port=%d", self._address, self._port)
        return True

    async def run(self) -> None:
        """Write events until cancelled."""
        await self._recorder.run()

    async def close(self) -> None:
        """Answer no longer. The Service stays, for the next control plane."""
        await self._server.close()

    async def _tell(self, why: str) -> None:
        await self._remove()
        _log.warning("names are not served by DNS: %s", why)
        namespace = self._registry.get("namespaces", "", NAMESPACE)
        if namespace is not None:
            self._recorder.record(namespace, "Namespace", NOT_SERVED, why, "Warning")

    async def _publish(self) -> None:
        service = dns_service(self._address, self._port)
        standing = self._registry.get("services", NAMESPACE, NAME)
        if standing is not None and standing["spec"].get("clusterIP") != self._address:
            await self._remove()
            standing = None
        if standing is None:
            await self._registry.create("services", NAMESPACE, service)
        subset: dict[str, Any] = {
            "addresses": [{"ip": self._address}],
            "ports": [{"name": name, "port": self._port, "protocol": protocol} for name, protocol in _PORTS],
        }
        endpoints = {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": {"name": NAME, "labels": _LABELS},
            "subsets": [subset],
        }
        await self._registry.patch("endpoints", NAMESPACE, NAME, endpoints, "apply", manager=COMPONENT)

    async def _remove(self) -> None:
        if self._registry.get("services", NAMESPACE, NAME) is not None:
            await self._registry.delete("services", NAMESPACE, NAME)


def dns_service(address: str, port: int = PORT) -> dict[str, Any]:
    """Return the Service of a DNS server that listens at the Service's own address."""
    ports = [{"name": name, "port": port, "targetPort": port, "protocol": protocol} for name, protocol in _PORTS]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": _LABELS},
        "spec": {"clusterIP": address, "ports": ports},
    }


def why_not(error: OSError, address: str, port: int) -> str:
    """Return why the server cannot listen there, with the cure. Pods find Services by /etc/hosts then."""
    match error.errno:
        case errno.EACCES | errno.EPERM:
            setting = f"sysctl -w net.ipv4.ip_unprivileged_port_start={port}"
            cure = f"start the cluster as root, or run {setting} as root and start the cluster again"
            return f"DNS needs port {port} of {address}, which needs root on this machine: {_MEANWHILE}; {cure}"
        case errno.EADDRINUSE:
            return (
                f"DNS needs port {port} of {address}, which another program on this machine has, maybe for all "
                f"addresses: {_MEANWHILE}; end that program and start the cluster again"
            )
        case _:
            return f"DNS cannot listen on port {port} of {address}: {error.strerror}; {_MEANWHILE}"
