"""One client of the API server for the operands of all light nodes.

An operand watches one object: its own GPUNode, or its own Node. Thousands of such watches would be thousands of
connections on both sides, so here each kind is watched once and each operand sees its part. Everything else a client
does goes to the server as it is.

Invariant: who has written an object reads nothing older than what it wrote; until the watch has caught up, reads go to
the server.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Final

from kubekit.api.meta import KubeObject, Resource, key
from kubekit.kube import Client, EventType, Informer, ListPage, WatchEvent
from kubekit.kube.auth import Auth, Credential
from kubekit.kube.codec import BadItem

_ALL: Final = ""  # no object has this name


class Hub:
    """All objects of one kind, and who waits for news of which."""

    def __init__(self, client: Client, kind: type[Any]) -> None:
        self.informer: Informer[Any] = Informer(client, kind)
        self._waiting: dict[str, list[asyncio.Queue[WatchEvent[Any]]]] = {}
        self.informer.add_handler(self._tell)
        self.informer.start()

    def _tell(self, old: KubeObject | None, new: KubeObject | None) -> None:
        obj = new if new is not None else old
        assert obj is not None
        queues = [*self._waiting.get(key(obj), ()), *self._waiting.get(_ALL, ())]
        if queues:
            kind = EventType.DELETED if new is None else EventType.ADDED if old is None else EventType.MODIFIED
            event = WatchEvent(kind, obj, obj.metadata.resource_version)
            for queue in queues:
                queue.put_nowait(event)

    async def page_of_all(self) -> ListPage:
        await self.informer.synced()
        items = self.informer.items()
        newest = max((int(obj.metadata.resource_version) for obj in items), default=0)
        return ListPage(items, str(newest), "")

    async def page(self, name: str) -> ListPage:
        await self.informer.synced()
        obj = self.informer.get(name)
        return ListPage([] if obj is None else [obj], "0" if obj is None else obj.metadata.resource_version, "")

    async def watch(self, name: str, since: str) -> AsyncGenerator[WatchEvent[Any], None]:
        """News of one object; what changed since version `since` comes first, as a server's watch would have it."""
        queue: asyncio.Queue[WatchEvent[Any]] = asyncio.Queue()
        self._waiting.setdefault(name, []).append(queue)
        try:
            obj = self.informer.get(name)
            if obj is not None and obj.metadata.resource_version != since:
                yield WatchEvent(EventType.MODIFIED, obj, obj.metadata.resource_version)
            while True:
                yield await queue.get()
        finally:
            self._waiting[name].remove(queue)
            if not self._waiting[name]:
                del self._waiting[name]

    async def watch_all(self) -> AsyncGenerator[WatchEvent[Any], None]:
        """News of every object; what is there comes first, for it may have changed since it was listed."""
        queue: asyncio.Queue[WatchEvent[Any]] = asyncio.Queue()
        self._waiting.setdefault(_ALL, []).append(queue)
        try:
            for obj in self.informer.items():
                yield WatchEvent(EventType.MODIFIED, obj, obj.metadata.resource_version)
            while True:
                yield await queue.get()
        finally:
            self._waiting[_ALL].remove(queue)


class Hubs:
    """The hubs of a process, made when first asked for."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._hubs: dict[Any, Hub] = {}
        self._written: dict[tuple[str, str], int] = {}  # (plural, name) -> version of the last write from here

    def wrote(self, answer: Mapping[str, Any], plural: str) -> None:
        """Remembers the version that a write of a cluster-scoped object gave it."""
        meta = answer["metadata"]
        if not meta.get("namespace"):
            key = (plural, meta["name"])
            self._written[key] = max(self._written.get(key, 0), int(meta["resourceVersion"]))

    async def fresh(self, kind: type[Any], name: str) -> Any | None:
        """The object as the watch has it, None when it is not there or older than what was written from here."""
        hub = self.of(kind)
        await hub.informer.synced()
        obj = hub.informer.get(name)
        if obj is None or int(obj.metadata.resource_version) < self._written.get((kind.RESOURCE.plural, name), 0):
            return None
        return obj

    def of(self, kind: type[Any]) -> Hub:
        if kind not in self._hubs:
            self._hubs[kind] = Hub(self._client, kind)
        return self._hubs[kind]

    async def stop(self) -> None:
        for hub in self._hubs.values():
            await hub.informer.stop()


class ViewClient(Client):
    """A client whose watches of a single cluster-scoped object are served by the hubs."""

    hubs: Hubs
    limit: asyncio.Semaphore

    def as_other(self, auth: Auth) -> ViewClient:
        """A client with another identity and the connections, views and limit of this one."""
        other = copy.copy(self)
        other._auth = auth
        other._credential = Credential()
        return other

    async def request(self, *args: Any, **kwargs: Any) -> bytes:
        """As `Client.request`, but only so many at a time: a thousand nodes that act at once share few connections."""
        async with self.limit:
            return await super().request(*args, **kwargs)

    async def get(self, kind: type[Any], name: str, namespace: str | None = None) -> Any:
        if not kind.RESOURCE.namespaced:
            found = await self.hubs.fresh(kind, name)
            if found is not None:
                return found
        return await super().get(kind, name, namespace)

    async def apply(
        self,
        obj: Any,
        manager: str,
        force: bool = True,
        namespace: str | None = None,
        subresource: str | None = None,
        resource: Resource | None = None,
    ) -> dict[str, Any]:
        answer = await super().apply(obj, manager, force, namespace, subresource, resource)
        if resource is not None:
            self.hubs.wrote(answer, resource.plural)
        return answer

    @staticmethod
    def _whole(kind: type[Any], namespace: str | None, labels: str, fields: str) -> bool:
        """Return whether all objects of a kind are asked for, which many operands do for the same few."""
        return not kind.RESOURCE.namespaced and not namespace and not labels and not fields

    @staticmethod
    def _single(kind: type[Any], namespace: str | None, labels: str, fields: str) -> str:
        """The name of the one object that is asked for, "" when it is not one."""
        alone = not kind.RESOURCE.namespaced and not namespace and not labels and "," not in fields
        return fields.removeprefix("metadata.name=") if alone and fields.startswith("metadata.name=") else ""

    def pages(
        self,
        kind: type[Any],
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        *,
        bad: BadItem | None = None,
    ) -> AsyncIterator[ListPage | None]:
        if self._whole(kind, namespace, labels, fields):
            return self._page_of_all(kind)
        name = self._single(kind, namespace, labels, fields)
        if not name:
            return super().pages(kind, namespace, labels, fields, bad=bad)
        return self._page(kind, name)

    async def _page_of_all(self, kind: type[Any]) -> AsyncIterator[ListPage | None]:
        yield await self.hubs.of(kind).page_of_all()

    async def _page(self, kind: type[Any], name: str) -> AsyncIterator[ListPage | None]:
        yield await self.hubs.of(kind).page(name)

    def watch(
        self,
        kind: type[Any],
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        *,
        bad: BadItem | None = None,
    ) -> AsyncGenerator[WatchEvent[Any], None]:
        if self._whole(kind, namespace, labels, fields):
            return self.hubs.of(kind).watch_all()
        name = self._single(kind, namespace, labels, fields)
        if not name:
            return super().watch(kind, namespace, labels, fields, resource_version, bad=bad)
        return self.hubs.of(kind).watch(name, resource_version)
