"""Writes the EndpointSlices of a Service, as one of its two controllers plans them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tinykube.controllers.endpoints.decide import EndpointGroup
from tinykube.controllers.endpoints.packing import plan_slices
from tinykube.controllers.following import follow

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
SERVICE_NAME: Final = "kubernetes.io/service-name"
MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
_LONGEST_PREFIX: Final = 57  # of a generated name


class ManagedSlices:
    """The slices of one manager, by Service (`namespace/name`).

    `changed` is called with the key of a Service whose slices another writer may have changed.
    """

    def __init__(self, registry: Registry, manager: str, changed: Callable[[str], None]) -> None:
        self._registry = registry
        self._resource = registry.resource(("discovery.k8s.io", "endpointslices"))
        self._manager = manager
        self._changed = changed
        self._standing: dict[str, dict[str, Object]] = {}
        follow(registry, self._resource, self._on_slice)

    def _on_slice(self, event: str, obj: Object, old: Object | None) -> None:
        for piece in (old, obj):
            if (key := self._key(piece)) in self._standing:
                self._standing[key].pop(obj["metadata"]["name"], None)
                if not self._standing[key]:
                    del self._standing[key]
        if event != "DELETED" and (key := self._key(obj)):
            self._standing.setdefault(key, {})[obj["metadata"]["name"]] = obj
        for key in dict.fromkeys((self._key(old), self._key(obj))):
            if key:
                self._changed(key)

    def _key(self, piece: Object | None) -> str:
        meta = (piece or {}).get("metadata") or {}
        labels = meta.get("labels") or {}
        own = labels.get(MANAGED_BY) == self._manager and labels.get(SERVICE_NAME)
        return f"{meta['namespace']}/{labels[SERVICE_NAME]}" if own else ""

    async def write(self, key: str, groups: list[EndpointGroup], meta: dict[str, Any]) -> None:
        """Make the slices hold the groups; `meta` are the labels, annotations and owners of all of them."""
        plan = plan_slices(groups, self._standing.get(key, {}).values())
        namespace, name = key.split("/", 1)
        labels = {**meta.get("labels", {}), SERVICE_NAME: name, MANAGED_BY: self._manager}
        for one in plan.delete:
            await self._delete(one)
        for one, group in plan.update:
            metadata = {**one["metadata"], **meta, "labels": labels}
            new = {**one, "metadata": metadata, "endpoints": group.endpoints, "ports": group.ports}
            if new != one:
                await self._registry.update(self._resource, namespace, one["metadata"]["name"], new)
        for group in plan.create:
            metadata = {"generateName": f"{name[:_LONGEST_PREFIX]}-", **meta, "labels": labels}
            body = {"addressType": "IPv4", "endpoints": group.endpoints, "ports": group.ports}
            await self._registry.create(self._resource, namespace, {"metadata": metadata, **body})

    async def remove(self, key: str) -> None:
        for one in list(self._standing.get(key, {}).values()):
            await self._delete(one)

    async def _delete(self, one: Object) -> None:
        meta = one["metadata"]
        if self._registry.get(self._resource, meta["namespace"], meta["name"]) is not None:
            await self._registry.delete(self._resource, meta["namespace"], meta["name"])
