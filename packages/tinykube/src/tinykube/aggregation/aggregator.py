"""Serves the groups of other API servers: each APIService with `spec.service` names one.

A group version that is served here is never passed on. An APIService is checked when it is written, when its Service or
the addresses behind it change, and each 30 seconds while it exists, as kube-aggregator does; without one nothing is
checked. Requests get 503 until a check has passed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tinykube.aggregation.backend import UNAVAILABLE, Backend, Resolve, ServiceState
from tinykube.aggregation.documents import AggregatedVersion, groups, merged
from tinykube.aggregation.front_proxy import FrontProxy
from tinykube.apiserver.asgi import HttpRequest, HttpResponse, json_response
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.hooks import Object, Page
from tinykube.controllers.following import follow
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

_CHECK_S: Final = 30.0
_LOCAL: Final = ("True", "Local", "Local APIServices are always available")
_PASSED: Final = ("True", "Passed", "all checks passed")


class Aggregator:
    """All aggregated API servers of one cluster.

    Args:
        local: answers /apis with the groups that are served here.
        resolve: returns the address behind a service's port.
    """

    def __init__(self, registry: Registry, proxy: FrontProxy, local: Page, resolve: Resolve) -> None:
        self._registry = registry
        self._proxy = proxy
        self._local = local
        self._resolve = resolve
        self._info = registry.resource("apiservices")
        self._backends: dict[str, Backend] = {}
        self._retired: list[Backend] = []  # whose connections are still to be closed
        self.worker: KeyWorker[str] = KeyWorker("aggregation", self._check)
        # NB: before the page of discovery, whose answer for /apis is part of this one's.
        registry.hooks.pages.insert(0, self.page)
        follow(registry, self._info, self._on_service)
        for plural in ("services", "endpoints", "endpointslices"):
            follow(registry, registry.resource(plural), self._on_endpoint, existing=False)

    async def run(self) -> None:
        """Check until cancelled."""
        try:
            await self.worker.run()
        finally:
            self._retired += self._backends.values()
            await self._close_retired()

    async def _close_retired(self) -> None:
        while self._retired:
            await self._retired.pop().aclose()

    # -- availability ------------------------------------------------------------------------------------------------
    def _on_service(self, event: str, obj: Mapping[str, Any], old: Mapping[str, Any] | None) -> None:
        name, spec = obj["metadata"]["name"], obj["spec"]
        known = self._backends.get(name)
        if event != "DELETED" and spec.get("service") and known is not None and known.spec == spec:
            return  # only its status changed
        if known is not None:
            self._retired.append(self._backends.pop(name))
        if event != "DELETED" and spec.get("service"):
            self._backends[name] = Backend(dict(spec), self._proxy, self._resolve)
        self.worker.add(name)

    def _on_endpoint(self, event: str, obj: Mapping[str, Any], old: Mapping[str, Any] | None) -> None:
        meta = obj["metadata"]
        service = (meta.get("labels") or {}).get("kubernetes.io/service-name") or meta["name"]
        for name, backend in self._backends.items():
            if backend.service == (meta["namespace"], service):
                self.worker.add(name)

    async def _check(self, name: str) -> float | None:
        await self._close_retired()
        obj = self._registry.get(self._info, "", name)
        if obj is None:
            return None
        backend = self._backends.get(name)
        if backend is None:
            await self._write(name, *_LOCAL)
            return None
        status, reason, message = _PASSED
        try:
            self._look_up(backend)
            await backend.check()
        except ServiceState as state:
            status, reason, message = "False", state.reason, state.message
        backend.available = status == "True"  # a server that passed the last check is used during the next one
        if self._backends.get(name) is backend:
            await self._write(name, status, reason, message)
        return _CHECK_S

    def _look_up(self, backend: Backend) -> None:
        """Raise ServiceState where the Service is missing or has no such port."""
        namespace, name = backend.service
        service = self._registry.get("services", namespace, name)
        if service is None:
            raise ServiceState("ServiceNotFound", f'service/{name} in "{namespace}" is not present')
        backend.host = service["spec"].get("externalName") or ""
        if not backend.host and not any(one["port"] == backend.port for one in service["spec"].get("ports") or ()):
            text = f'service/{name} in "{namespace}" is not listening on port {backend.port}'
            raise ServiceState("ServicePortError", text)

    async def _write(self, name: str, status: str, reason: str, message: str) -> None:
        obj = self._registry.get(self._info, "", name)
        if obj is None:
            return
        listed = (obj.get("status") or {}).get("conditions") or []
        before: Object = next((one for one in listed if one["type"] == "Available"), {})
        since = before.get("lastTransitionTime") if before.get("status") == status else self._registry.now()
        condition = {
            "type": "Available",
            "status": status,
            "lastTransitionTime": since,
            "reason": reason,
            "message": message,
        }
        if condition == before:
            return
        others = [one for one in listed if one["type"] != "Available"]
        body = {**obj, "status": {"conditions": [*others, condition]}}
        try:
            await self._registry.update(self._info, None, name, body, subresource="status")
        except ApiFailure as error:
            if error.status != 404:
                raise

    # -- requests ----------------------------------------------------------------------------------------------------
    async def page(self, request: HttpRequest) -> HttpResponse | None:
        """Answer what is below /apis of other servers; None for everything else."""
        parts = request.parts
        if parts[0] != "apis" or not self._backends:
            return None
        if len(parts) == 1 and request.method in ("GET", "HEAD"):
            return await self._groups(request)
        if len(parts) == 2:
            found = [one for one in groups(self._versions()) if one["name"] == parts[1]]
            if not found or self._registry.kinds.serves_group(parts[1]):
                return None
            return json_response({"kind": "APIGroup", "apiVersion": "v1", **found[0]})
        backend = self._backends.get(f"{parts[2]}.{parts[1]}") if len(parts) > 2 else None
        if backend is None or self._serves(parts[1], parts[2]):
            return None
        return await backend.forward(request) if backend.available else UNAVAILABLE

    def _serves(self, group: str, version: str) -> bool:
        return any((kind.info.group, kind.info.version) == (group, version) for kind in self._registry.kinds)

    def _versions(self) -> list[AggregatedVersion]:
        return [
            AggregatedVersion(
                backend.spec["group"],
                backend.spec["version"],
                backend.spec.get("groupPriorityMinimum", 0),
                backend.spec.get("versionPriority", 0),
                backend.available,
                tuple(backend.resources),
            )
            for backend in self._backends.values()
        ]

    async def _groups(self, request: HttpRequest) -> HttpResponse | None:
        """Return the answer of this server with the groups of the others."""
        headers = [(name, value) for name, value in request.headers.items() if name != b"if-none-match"]
        asked = HttpRequest({**request.scope, "headers": headers}, request.receive, request.send)
        answer = await self._local(asked)
        if answer is None or answer.status != 200:
            return answer
        document: Object = merged(msgspec.json.decode(answer.body), self._versions())
        body = msgspec.json.encode(document)
        kept = tuple(one for one in answer.headers if one[0] != b"etag")
        if len(kept) == len(answer.headers):
            return HttpResponse(200, body, answer.content_type, kept)
        etag = f'"{hashlib.sha256(body).hexdigest().upper()}"'
        if request.header(b"if-none-match") == etag:
            return HttpResponse(304, b"", answer.content_type, (*kept, (b"etag", etag.encode())))
        return HttpResponse(200, body, answer.content_type, (*kept, (b"etag", etag.encode())))
