"""Endpoints and EndpointSlices of services with a selector: where the ready pods are.

One slice per service and no more than its first thousand addresses. The service proxy carries connections by the
Endpoints; users and clients read both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kubekit.scheduling.selectors import Selector, equalities
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.controllers import pods as podstate
from tinykube.controllers.following import follow
from tinykube.controllers.templates import owner_reference
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
_MOST: Final = 1000
_HEADLESS: Final = "service.kubernetes.io/headless"
_MANAGED_BY: Final = "endpointslice-controller.k8s.io"


def port_of(port: Object, pod: Object) -> int | None:
    """The number behind a service port on one pod; a name is looked up among the pod's ports."""
    target = port.get("targetPort") or port["port"]
    if isinstance(target, int):
        return target
    for container in pod["spec"].get("containers") or ():
        for one in container.get("ports") or ():
            if one.get("name") == target:
                number: int = one["containerPort"]
                return number
    return None


def addresses(service: Object, pods: Iterable[Object]) -> list[tuple[Object, bool]]:
    """The pods behind a service that have an address, with whether they are ready."""
    unready_too = bool(service["spec"].get("publishNotReadyAddresses"))
    found = [
        (pod, unready_too or podstate.is_ready(pod))
        for pod in pods
        if (pod.get("status") or {}).get("podIP") and podstate.is_active(pod)
    ]
    return sorted(found, key=lambda item: str(item[0]["metadata"]["name"]))[:_MOST]


def _reference(pod: Object) -> dict[str, str]:
    meta = pod["metadata"]
    return {"kind": "Pod", "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}


def _hostname(service: Object, pod: Object) -> str:
    """Return the name of a pod below the name of its Service; empty for a pod of no such name."""
    spec, meta = pod["spec"], service["metadata"]
    is_named = spec.get("subdomain") == meta["name"] and pod["metadata"]["namespace"] == meta["namespace"]
    return (spec.get("hostname") or "") if is_named else ""


def is_headless(service: Object) -> bool:
    return bool(service["spec"].get("clusterIP") == "None")


def endpoints_of(service: Object, found: list[tuple[Object, bool]]) -> list[dict[str, Any]]:
    """`subsets` of the Endpoints object: one for each set of port numbers."""
    subsets: dict[tuple[tuple[str, int, str], ...], dict[str, Any]] = {}
    for pod, ready in found:
        ports = tuple(
            (port.get("name") or "", number, port.get("protocol") or "TCP")
            for port in service["spec"].get("ports") or ()
            if (number := port_of(port, pod)) is not None
        )
        subset = subsets.setdefault(ports, {"addresses": [], "notReadyAddresses": []})
        address = {"ip": pod["status"]["podIP"], "targetRef": _reference(pod)}
        if pod["spec"].get("nodeName"):
            address["nodeName"] = pod["spec"]["nodeName"]
        if hostname := _hostname(service, pod):
            address["hostname"] = hostname
        subset["addresses" if ready else "notReadyAddresses"].append(address)
    answer = []
    for ports, subset in subsets.items():
        body: dict[str, Any] = {field: listed for field, listed in subset.items() if listed}
        body["ports"] = [
            {**({"name": name} if name else {}), "port": number, "protocol": protocol}
            for name, number, protocol in ports
        ]
        answer.append(body)
    return answer


def slice_of(service: Object, found: list[tuple[Object, bool]]) -> dict[str, Any]:
    """Endpoints and ports of the EndpointSlice."""
    first = found[0][0] if found else None
    ports = [
        {
            "name": port.get("name") or "",
            "port": port_of(port, first) if first is not None else port["port"],
            "protocol": port.get("protocol") or "TCP",
        }
        for port in service["spec"].get("ports") or ()
    ]
    endpoints = []
    for pod, ready in found:
        endpoint: dict[str, Any] = {
            "addresses": [pod["status"]["podIP"]],
            "conditions": {"ready": ready, "serving": ready, "terminating": False},
            "targetRef": _reference(pod),
        }
        if pod["spec"].get("nodeName"):
            endpoint["nodeName"] = pod["spec"]["nodeName"]
        if hostname := _hostname(service, pod):
            endpoint["hostname"] = hostname
        endpoints.append(endpoint)
    return {"addressType": "IPv4", "endpoints": endpoints, "ports": ports}


class EndpointsController:
    """Follows services and the pods behind them."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._services = registry.resource("services")
        self._pods = registry.resource("pods")
        self._endpoints = registry.resource("endpoints")
        self._slices = registry.resource(("discovery.k8s.io", "endpointslices"))
        self._selectors: dict[str, dict[str, Selector]] = {}
        self._members: dict[str, dict[str, Object]] = {}  # by service key, pod name
        self.worker: KeyWorker[str] = KeyWorker("endpoints", self._look)
        for resource, callback in ((self._services, self._on_service), (self._pods, self._on_pod)):
            follow(registry, resource, callback)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    def _on_service(self, event: str, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        key, named = f"{meta['namespace']}/{meta['name']}", self._selectors.setdefault(meta["namespace"], {})
        selector = obj["spec"].get("selector")
        if event == "DELETED" or not selector:
            named.pop(meta["name"], None)
            self._members.pop(key, None)
        elif old is None or old["spec"].get("selector") != selector:
            compiled = named[meta["name"]] = Selector(equalities(selector))
            self._members[key] = {
                pod["metadata"]["name"]: pod
                for pod in self._registry.list(self._pods, meta["namespace"])
                if compiled.matches(pod["metadata"].get("labels") or {})
            }
        self.worker.add(key)

    def _on_pod(self, event: str, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        for name, selector in self._selectors.get(meta["namespace"], {}).items():
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
        if not service["spec"].get("selector"):
            return None
        found = addresses(service, self._members.get(key, {}).values())
        labels = dict(service["metadata"].get("labels") or {})
        if is_headless(service):
            labels[_HEADLESS] = ""
        subsets = endpoints_of(service, found)
        await self._put(self._endpoints, namespace, name, {"labels": labels}, {"subsets": subsets} if subsets else {})
        meta = {
            "labels": {
                **labels,
                "kubernetes.io/service-name": name,
                "endpointslice.kubernetes.io/managed-by": _MANAGED_BY,
            },
            "ownerReferences": [owner_reference(service, "v1", "Service")],
        }
        await self._put(self._slices, namespace, f"{name}-slice", meta, slice_of(service, found))
        return None

    async def _put(
        self, resource: ResourceInfo, namespace: str, name: str, meta: dict[str, Any], body: dict[str, Any]
    ) -> None:
        standing = self._registry.get(resource, namespace, name)
        if standing is None:
            await self._registry.create(resource, namespace, {"metadata": {"name": name, **meta}, **body})
            return
        new = {**standing, "metadata": {**standing["metadata"], **meta}, **body}
        if "subsets" in standing and "subsets" not in body and resource is self._endpoints:
            del new["subsets"]
        if new != standing:
            await self._registry.update(resource, namespace, name, new)


def _shown(pod: Object) -> object:
    return (pod.get("status") or {}).get("podIP"), podstate.is_ready(pod), podstate.is_active(pod)
