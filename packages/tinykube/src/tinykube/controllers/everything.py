"""One ear for all resources, also those that CRDs bring later: what garbage collection and namespaces need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tinykube.apiserver.builtin import ResourceInfo
from tinykube.controllers.following import follow

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry
    from tinykube.apiserver.store import Table

Object = Mapping[str, Any]
Listener = Callable[[ResourceInfo, str, Object, Object | None], None]


class Everything:
    """Calls every listener (resource, event type, object, old) for every write of every stored resource.

    Listeners must be added before `start`, which also tells them what is there already.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._tables: dict[str, Table] = {}
        self._listeners: list[Listener] = []
        self._changes = -1

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def start(self) -> None:
        self._refresh()
        crds = self._registry.resource(("apiextensions.k8s.io", "customresourcedefinitions"))
        follow(self._registry, crds, self._on_crd, existing=False)

    def _on_crd(self, event: str, obj: Object, old: Object | None) -> None:
        # The kind is served after the CRD is stored; look when the handler that serves it has run.
        asyncio.get_running_loop().call_soon(self._refresh)

    def resources(self) -> Iterator[ResourceInfo]:
        """Every stored resource once, whatever number of versions it is served in."""
        seen = set()
        for kind in self._registry.kinds:
            if not kind.info.virtual and kind.table.resource not in seen:
                seen.add(kind.table.resource)
                yield kind.info

    def _refresh(self) -> None:
        if self._changes == self._registry.kinds.changes:
            return
        self._changes = self._registry.kinds.changes
        fresh = []
        for kind in self._registry.kinds:
            table = kind.table
            if kind.info.virtual or self._tables.get(table.resource) is table:
                continue
            self._tables[table.resource] = table
            self._subscribe(kind.info)
            fresh.append(kind.info)
        for info in fresh:
            for obj in self._registry.list(info):
                self._tell(info, "ADDED", obj, None)

    def _subscribe(self, info: ResourceInfo) -> None:
        follow(self._registry, info, lambda event, obj, old: self._tell(info, event, obj, old), existing=False)

    def _tell(self, info: ResourceInfo, event: str, obj: Object, old: Object | None) -> None:
        for listener in self._listeners:
            listener(info, event, obj, old)
