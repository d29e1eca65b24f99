"""One client of the API server for the operands of all light nodes.

An operand watches one object: its own GPUNode, or its own Node. Thousands of such watches would be thousands of
connections on both sides, so here each kind is watched once and each operand sees its part. Everything else a client
does goes to the server as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from gpuplane.api.meta import KubeObject, key
from gpuplane.kube import Client, Event, EventType, Informer, Page
from gpuplane.kube.codec import BadItem


class Hub:
    """All objects of one kind, and who waits for news of which."""

    def __init__(self, client: Client, kind: type[Any]) -> None:
        self.informer: Informer[Any] = Informer(client, kind)
        self._waiting: dict[str, list[asyncio.Queue[Event[Any]]]] = {}
        self.informer.add_handler(self._tell)
        self.informer.start()

    def _tell(self, old: KubeObject | None, new: KubeObject | None) -> None:
        obj = new if new is not None else old
        assert obj is not None
        queues = self._waiting.get(key(obj))
        if queues:
            kind = EventType.DELETED if new is None else EventType.ADDED if old is None else EventType.MODIFIED
            event = Event(kind, obj, obj.metadata.resource_version)
            for queue in queues:
                queue.put_nowait(event)

    async def page(self, name: str) -> Page:
        await self.informer.synced()
        obj = self.informer.get(name)
        return Page([] if obj is None else [obj], "0" if obj is None else obj.metadata.resource_version, "")

    async def watch(self, name: str, since: str) -> AsyncGenerator[Event[Any], None]:
        """News of one object; what changed since version `since` comes first, as a server's watch would have it."""
        queue: asyncio.Queue[Event[Any]] = asyncio.Queue()
        self._waiting.setdefault(name, []).append(queue)
        try:
            obj = self.informer.get(name)
            if obj is not None and obj.metadata.resource_version != since:
                yield Event(EventType.MODIFIED, obj, obj.metadata.resource_version)
            while True:
                yield await queue.get()
        finally:
            self._waiting[name].remove(queue)
            if not self._waiting[name]:
                del self._waiting[name]


class Hubs:
    """The hubs of a process, made when first asked for."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._hubs: dict[Any, Hub] = {}

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

    async def request(self, *args: Any, **kwargs: Any) -> bytes:
        """As `Client.request`, but only so many at a time: a thousand nodes that act at once share few connections."""
        async with self.limit:
            return await super().request(*args, **kwargs)

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
    ) -> AsyncIterator[Page | None]:
        name = self._single(kind, namespace, labels, fields)
        if not name:
            return super().pages(kind, namespace, labels, fields, bad=bad)
        return self._page(kind, name)

    async def _page(self, kind: type[Any], name: str) -> AsyncIterator[Page | None]:
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
    ) -> AsyncGenerator[Event[Any], None]:
        name = self._single(kind, namespace, labels, fields)
        if not name:
            return super().watch(kind, namespace, labels, fields, resource_version, bad=bad)
        return self.hubs.of(kind).watch(name, resource_version)
