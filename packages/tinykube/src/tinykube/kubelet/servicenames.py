"""Lets pods find Services: by variables, as every kubelet sets them, and by name.

Variables are those of the Services that are there when a container starts. Names are found by DNS where the cluster has
a Service `kube-dns`. Without one they are in /etc/hosts, which follows later changes; a pod without a root of its own
has none. Headless Services have names alone (`headless`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Final

from msgspec import field

from kubekit.api.kinds import built_in
from kubekit.api.meta import ObjectMeta, Resource, Struct
from kubekit.kube import Client, Informer
from tinykube.kubelet.headless import HEADLESS, HeadlessSlice, headless_lines, service_names

DNS_SERVICE: Final = "kube-system/kube-dns"
_KUBERNETES: Final = ("default", "kubernetes")  # the kubelet says where the API server is


class NamedPort(Struct):
    port: int
    name: str = ""
    protocol: str = "TCP"


class ServiceAddress(Struct):
    cluster_ip: str = field(name="clusterIP", default="")
    ports: tuple[NamedPort, ...] = ()


class NamedService(Struct):
    """A Service as pods address it."""

    RESOURCE: ClassVar[Resource] = built_in("v1", "Service")
    metadata: ObjectMeta
    spec: ServiceAddress = ServiceAddress()


def addressed(services: Iterable[NamedService]) -> list[NamedService]:
    """Return the Services with an address, by namespace and name."""
    found = [
        one
        for one in services
        if one.spec.cluster_ip not in ("", "None") and (one.metadata.namespace, one.metadata.name) != _KUBERNETES
    ]
    return sorted(found, key=lambda one: (one.metadata.namespace, one.metadata.name))


def service_env(services: Iterable[NamedService], namespace: str) -> dict[str, str]:
    """Return the variables of the Services in a pod's namespace, as kubernetes.io/docs has them (Service links)."""
    env: dict[str, str] = {}
    for one in addressed(services):
        if one.metadata.namespace == namespace and one.spec.ports:
            env.update(_variables(one))
    return env


def _variables(service: NamedService) -> Iterator[tuple[str, str]]:
    name, address = _upper(service.metadata.name), service.spec.cluster_ip
    first = service.spec.ports[0]
    yield f"{name}_SERVICE_HOST", address
    yield f"{name}_SERVICE_PORT", str(first.port)
    for port in service.spec.ports:
        if port.name:
            yield f"{name}_SERVICE_PORT_{_upper(port.name)}", str(port.port)
    yield f"{name}_PORT", f"{first.protocol.lower()}://{address}:{first.port}"
    for port in service.spec.ports:
        prefix = f"{name}_PORT_{port.port}_{port.protocol.upper()}"
        yield prefix, f"{port.protocol.lower()}://{address}:{port.port}"
        yield f"{prefix}_PROTO", port.protocol.lower()
        yield f"{prefix}_PORT", str(port.port)
        yield f"{prefix}_ADDR", address


def _upper(name: str) -> str:
    return name.upper().replace("-", "_")


def host_lines(services: Iterable[NamedService], namespace: str) -> str:
    """Return the lines of /etc/hosts by which a pod of a namespace finds Services."""
    lines = []
    for one in addressed(services):
        names = service_names(one.metadata.name, one.metadata.namespace, namespace)
        lines.append(f"{one.spec.cluster_ip}\t{' '.join(names)}\n")
    return "".join(lines)


class ServiceNames:
    """The Services of the cluster, and the hosts files that name them. Watched from the first container on."""

    def __init__(self, client: Client) -> None:
        self._informer: Informer[NamedService] = Informer(client, NamedService)
        self._slices: Informer[HeadlessSlice] = Informer(client, HeadlessSlice, labels=HEADLESS)
        self._informer.add_handler(lambda old, new: self._write_all())
        self._slices.add_handler(lambda old, new: self._write_all())
        self._started = False
        self._files: dict[str, tuple[Path, str, str]] = {}
        self._written: dict[str, str] = {}

    async def env(self, namespace: str) -> Mapping[str, str]:
        """Return the variables for a container that starts now."""
        if not self._started:
            self._started = True
            self._informer.start()
            # NB: not waited for, since a real API server does not let kubelets list slices.
            self._slices.start()
        await self._informer.synced()
        return service_env(self._informer.items(), namespace)

    @property
    def dns_address(self) -> str:
        """Return the address of the cluster's DNS server; empty without one."""
        found = self._informer.get(DNS_SERVICE)
        return found.spec.cluster_ip if found is not None and found.spec.cluster_ip != "None" else ""

    def keep(self, pod_uid: str, path: Path, namespace: str, own: str) -> None:
        """Write a pod's hosts file, which begins with its `own` lines, now and whenever Services change."""
        self._files[pod_uid] = (path, namespace, own)
        self._written.pop(pod_uid, None)
        self._write(pod_uid)

    def forget(self, pod_uid: str) -> None:
        self._files.pop(pod_uid, None)
        self._written.pop(pod_uid, None)

    async def stop(self) -> None:
        await self._informer.stop()
        await self._slices.stop()

    def _write_all(self) -> None:
        for uid in self._files:
            self._write(uid)

    def _write(self, pod_uid: str) -> None:
        path, namespace, own = self._files[pod_uid]
        text = own
        if not self.dns_address:
            headless = headless_lines(self._slices.items(), namespace)
            text += host_lines(self._informer.items(), namespace) + headless
        if self._written.get(pod_uid) != text:
            path.write_text(text)  # NB: in place, since containers have this very file mounted
            self._written[pod_uid] = text
