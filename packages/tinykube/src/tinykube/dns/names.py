"""The Services and endpoints of a registry as names need them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from tinykube.controllers.following import follow
from tinykube.controllers.slicesofservices import SlicesOfServices
from tinykube.dns.zone import ReadyEndpoint

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
_HEADLESS: Final = "service.kubernetes.io/headless"


class RegistryNames:
    """`ClusterNames` of a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._services = registry.resource("services")
        self._namespaces = registry.resource("namespaces")
        self._slices = SlicesOfServices(registry)
        self._by_address: dict[str, tuple[str, str]] = {}
        follow(registry, self._services, self._on_service)

    def _on_service(self, event: str, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        key = meta["namespace"], meta["name"]
        for service in (old, obj):
            address = (service or {}).get("spec", {}).get("clusterIP")
            if address and self._by_address.get(address) == key:
                del self._by_address[address]
        address = obj["spec"].get("clusterIP")
        if event != "DELETED" and address not in (None, "", "None"):
            self._by_address[address] = key

    def service(self, namespace: str, name: str) -> Object | None:
        return self._registry.get(self._services, namespace, name)

    def has_namespace(self, name: str) -> bool:
        return self._registry.get(self._namespaces, "", name) is not None

    def endpoints(self, namespace: str, name: str) -> Iterator[ReadyEndpoint]:
        for piece in self._slices.get((namespace, name)):
            yield from _ready(piece)

    def service_at(self, address: str) -> tuple[str, str] | None:
        return self._by_address.get(address)

    def endpoints_at(self, address: str) -> Iterator[tuple[str, str, ReadyEndpoint]]:
        for (namespace, name), piece in self._slices.items():
            if _HEADLESS in piece["metadata"]["labels"]:
                for endpoint in _ready(piece):
                    if endpoint.address == address:
                        yield namespace, name, endpoint


def _ready(piece: Object) -> Iterator[ReadyEndpoint]:
    ports = tuple(
        (port.get("name") or "", str(port.get("protocol") or "TCP").lower(), port["port"])
        for port in piece.get("ports") or ()
        if port.get("port")
    )
    for endpoint in piece.get("endpoints") or ():
        if (endpoint.get("conditions") or {}).get("ready") is not False:
            for address in endpoint["addresses"][:1]:
                yield ReadyEndpoint(address, endpoint.get("hostname") or "", ports)
