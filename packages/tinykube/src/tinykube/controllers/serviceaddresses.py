"""IPAddresses of Services and the ServiceCIDRs, as the real API server and its controllers write them.

An IPAddress names the Service that has an address; the write of the Service allocates the address itself. Only the
cluster's own range is served: another ServiceCIDR is not ready, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tinykube.controllers import pods as objects
from tinykube.controllers.following import follow
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
DEFAULT: Final = "kubernetes"
_MANAGED_BY: Final = "ipaddress.kubernetes.io/managed-by"
_MANAGER: Final = "ipallocator.k8s.io"
_FAMILY: Final = "ipaddress.kubernetes.io/ip-family"
_RANGE: Final = "range/"


class ServiceAddressController:
    """Follows Services, IPAddresses and ServiceCIDRs. `network` is the cluster's own range in CIDR form."""

    def __init__(self, registry: Registry, network: str) -> None:
        self._registry = registry
        self._network = network
        self._services: dict[str, tuple[str, str]] = {}
        self._addresses = registry.resource(("networking.k8s.io", "ipaddresses"))
        self._ranges = registry.resource(("networking.k8s.io", "servicecidrs"))
        self.worker: KeyWorker[str] = KeyWorker("service addresses", self._look)
        follow(registry, registry.resource("services"), self._on_service)
        follow(registry, self._addresses, lambda event, obj, old: self.worker.add(obj["metadata"]["name"]))
        follow(registry, self._ranges, lambda event, obj, old: self.worker.add(_RANGE + obj["metadata"]["name"]))
        self.worker.add(_RANGE + DEFAULT)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    def _on_service(self, event: str, obj: Object, old: Object | None) -> None:
        key = obj["metadata"]["namespace"], obj["metadata"]["name"]
        before, after = _address(old), "" if event == "DELETED" else _address(obj)
        for address in {before, _address(obj)} - {""}:
            if self._services.get(address) == key:
                del self._services[address]
            self.worker.add(address)
        if after:
            self._services[after] = key

    async def _look(self, key: str) -> float | None:
        if key.startswith(_RANGE):
            await self._look_at_range(key.removeprefix(_RANGE))
        else:
            await self._look_at_address(key)
        return None

    async def _look_at_address(self, address: str) -> None:
        standing = self._registry.get(self._addresses, "", address)
        wanted = self._services.get(address)
        is_ours = standing is not None and (standing["metadata"].get("labels") or {}).get(_MANAGED_BY) == _MANAGER
        parent = _parent(*wanted) if wanted is not None else None
        if standing is not None and is_ours and standing["spec"].get("parentRef") != parent:
            await self._registry.delete(self._addresses, "", address)
            standing = None
        if parent is not None and standing is None:
            labels = {_MANAGED_BY: _MANAGER, _FAMILY: "IPv6" if ":" in address else "IPv4"}
            body = {"metadata": {"name": address, "labels": labels}, "spec": {"parentRef": parent}}
            await self._registry.create(self._addresses, "", body)

    async def _look_at_range(self, name: str) -> None:
        standing = self._registry.get(self._ranges, "", name)
        if standing is None:
            if name == DEFAULT:
                body = {"metadata": {"name": DEFAULT}, "spec": {"cidrs": [self._network]}}
                await self._registry.create(self._ranges, "", body)
            return
        is_served = standing["spec"]["cidrs"] == [self._network]
        known = objects.condition(standing, "Ready")
        status = "True" if is_served else "False"
        if known is not None and known["status"] == status:
            return
        only = f"Services of this cluster have addresses of {self._network} only"
        condition = {
            "type": "Ready",
            "status": status,
            "reason": "" if is_served else "NotServed",
            "message": "Kubernetes default Service CIDR is ready" if is_served else only,
            "lastTransitionTime": self._registry.now(),
        }
        others = [one for one in (standing.get("status") or {}).get("conditions") or () if one["type"] != "Ready"]
        change = {"status": {"conditions": [*others, condition]}}
        await self._registry.patch(self._ranges, "", name, change, "merge", subresource="status")


def _address(service: Object | None) -> str:
    address = ((service or {}).get("spec") or {}).get("clusterIP")
    return address if address and address != "None" else ""


def _parent(namespace: str, name: str) -> dict[str, str]:
    return {"resource": "services", "namespace": namespace, "name": name}
