"""Copies Endpoints that users write for Services without a selector to EndpointSlices, which proxies and DNS read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tinykube.controllers.endpoints.decide import mirrored
from tinykube.controllers.endpoints.slices import ManagedSlices
from tinykube.controllers.following import follow
from tinykube.controllers.templates import owner_reference
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
_MANAGER: Final = "endpointslicemirroring-controller.k8s.io"
SKIP: Final = "endpointslice.kubernetes.io/skip-mirror"
_LEADER: Final = "control-plane.alpha.kubernetes.io/leader"
_NOT_COPIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def is_mirrored(service: Object | None, endpoints: Object | None) -> bool:
    """Return whether the Endpoints of a Service are copied."""
    if service is None or endpoints is None or service["spec"].get("selector"):
        return False
    meta = endpoints["metadata"]
    return (meta.get("labels") or {}).get(SKIP) != "true" and _LEADER not in (meta.get("annotations") or {})


class MirroringController:
    """Follows Services and Endpoints."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._services = registry.resource("services")
        self._endpoints = registry.resource("endpoints")
        self.worker: KeyWorker[str] = KeyWorker("endpoint slice mirroring", self._look)
        self._slices = ManagedSlices(registry, _MANAGER, self.worker.add)
        for resource in (self._services, self._endpoints):
            follow(registry, resource, self._changed)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    def _changed(self, event: str, obj: Object, old: Object | None) -> None:
        self.worker.add(f"{obj['metadata']['namespace']}/{obj['metadata']['name']}")

    async def _look(self, key: str) -> float | None:
        namespace, name = key.split("/", 1)
        service = self._registry.get(self._services, namespace, name)
        endpoints = self._registry.get(self._endpoints, namespace, name)
        groups = mirrored(endpoints) if is_mirrored(service, endpoints) and endpoints is not None else []
        if not groups or endpoints is None:
            await self._slices.remove(key)
            return None
        meta = endpoints["metadata"]
        annotations = {key: value for key, value in (meta.get("annotations") or {}).items() if key != _NOT_COPIED}
        owners = [owner_reference(endpoints, "v1", "Endpoints")]
        copied: dict[str, Any] = {"labels": dict(meta.get("labels") or {}), "ownerReferences": owners}
        if annotations:
            copied["annotations"] = annotations
        await self._slices.write(key, groups, copied)
        return None
