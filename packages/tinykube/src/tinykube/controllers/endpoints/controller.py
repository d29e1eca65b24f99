"""Endpoints and EndpointSlices of services with a selector: where the ready pods are.

The service proxy and DNS read the slices; users and clients read both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kubekit.scheduling.selectors import Selector, equalities
from tinykube.apiserver.bynamespace import ByNamespace
from tinykube.controllers import pods as podstate
from tinykube.controllers.endpoints.decide import behind, groups_of, is_headless, subsets_of
from tinykube.controllers.endpoints.slices import ManagedSlices
from tinykube.controllers.following import follow
from tinykube.controllers.templates import owner_reference
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
_HEADLESS: Final = "service.kubernetes.io/headless"
_MANAGED: Final = {"endpoints.kubernetes.io/managed-by": "endpoint-controller"}
_MANAGER: Final = "endpointslice-controller.k8s.io"


class EndpointsController:
    """Follows services and the pods behind them."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._services = registry.resource("services")
        self._pods = registry.resource("pods")
        self._endpoints = registry.resource("endpoints")
        self._selectors: ByNamespace[Selector] = ByNamespace()
        self._members: dict[str, dict[str, Object]] = {}  # by service key, pod name
        self.worker: KeyWorker[str] = KeyWorker("endpoints", self._look)
        self._slices = ManagedSlices(registry, _MANAGER, self.worker.add)
        follow(registry, self._endpoints, self._on_endpoints, existing=False)
        for resource, callback in ((self._services, self._on_service), (self._pods, self._on_pod)):
            follow(registry, resource, callback)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    def _on_service(self, event: str, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        key = f"{meta['namespace']}/{meta['name']}"
        selector = obj["spec"].get("selector")
        if event == "DELETED" or not selector:
            self._selectors.discard(meta["namespace"], meta["name"])
            self._members.pop(key, None)
        elif old is None or old["spec"].get("selector") != selector:
            compiled = Selector(equalities(selector))
            self._selectors.put(meta["namespace"], meta["name"], compiled)
            self._members[key] = {
                pod["metadata"]["name"]: pod
                for pod in self._registry.list(self._pods, meta["namespace"])
                if compiled.matches(pod["metadata"].get("labels") or {})
            }
        self.worker.add(key)

    def _on_endpoints(self, event: str, obj: Object, old: Object | None) -> None:
        if event == "DELETED":  # NB: Endpoints without a Service are a user's, and stay
            self.worker.add(f"{obj['metadata']['namespace']}/{obj['metadata']['name']}")

    def _on_pod(self, event: str, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        for name, selector in self._selectors.of(meta["namespace"]).items():
            key = f"{meta['namespace']}/{name}"
            members = self._members.setdefault(key, {})
            before = members.get(meta["name"])
            if event != "DELETED" and selector.matches(meta.get("labels") or {}):
                members[meta["name"]] = obj
                if before is None or _shown(before) != _shown(obj):
                    self.worker.add(key)
            elif before is not None:
                del members[meta["name"]]
                self.worker.add(key)

    async def _look(self, key: str) -> float | None:
        namespace, name = key.split("/", 1)
        service = self._registry.get(self._services, namespace, name)
        if service is None:
            if self._registry.get(self._endpoints, namespace, name) is not None:
                await self._registry.delete(self._endpoints, namespace, name)
            return None
        if not service["spec"].get("selector") or service["spec"].get("type") == "ExternalName":
            return None
        pods = behind(self._members.get(key, {}).values())
        labels = dict(service["metadata"].get("labels") or {})
        if is_headless(service):
            labels[_HEADLESS] = ""
        await self._put_endpoints(namespace, name, {**labels, **_MANAGED}, subsets_of(service, pods))
        meta = {"labels": labels, "ownerReferences": [owner_reference(service, "v1", "Service")]}
        await self._slices.write(key, groups_of(service, pods), meta)
        return None

    async def _put_endpoints(
        self, namespace: str, name: str, labels: dict[str, str], subsets: list[dict[str, Any]]
    ) -> None:
        standing = self._registry.get(self._endpoints, namespace, name)
        body = {"subsets": subsets} if subsets else {}
        if standing is None:
            await self._registry.create(
                self._endpoints, namespace, {"metadata": {"name": name, "labels": labels}, **body}
            )
            return
        kept = {field: value for field, value in standing.items() if field != "subsets"}
        new = {**kept, "metadata": {**standing["metadata"], "labels": labels}, **body}
        if new != standing:
            await self._registry.update(self._endpoints, namespace, name, new)


def _shown(pod: Object) -> object:
    address = (pod.get("status") or {}).get("podIP")
    return address, podstate.is_ready(pod), podstate.is_finished(pod), podstate.is_terminating(pod)
