"""The ConfigMaps and Secrets that a node's pods mount, each watched once for all of them.

Invariant: an object is watched from the first pod that needs it until the last one has ended or is gone. The pods are
notified of changes, so that mounted files follow them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from kubekit.kube import Client, Informer

_Key = tuple[Any, str, str]


class WatchedObject:
    """One object, and the events of the pods that need it."""

    def __init__(self, informer: Informer[Any]) -> None:
        self.informer: Final = informer
        self.listeners: Final[set[asyncio.Event]] = set()
        informer.add_handler(self._notify)

    def _notify(self, old: Any, new: Any) -> None:
        if self.informer.has_synced:  # the first list is no change: `get` waits for it
            for listener in self.listeners:
                listener.set()


class Objects:
    """Single objects by kind, namespace and name."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._watched: dict[_Key, WatchedObject] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def watched(self) -> set[_Key]:
        """Return what is watched now, as kind, namespace and name."""
        return set(self._watched)

    async def get(self, kind: type[Any], namespace: str, name: str, changed: asyncio.Event) -> Any | None:
        """Return the current object, None when there is none. `changed` is set whenever it changes, until `forget`."""
        key = (kind, namespace, name)
        watched = self._watched.get(key)
        if watched is None:
            watched = WatchedObject(Informer(self._client, kind, namespace, fields=f"metadata.name={name}"))
            self._watched[key] = watched
            watched.informer.start()
        watched.listeners.add(changed)  # NB: before the list comes, so that no pod that ends meanwhile stops it
        await watched.informer.synced()
        return watched.informer.get(f"{namespace}/{name}")

    def forget(self, changed: asyncio.Event) -> None:
        """Remove the listener `changed`. Objects without another listener are no longer watched."""
        for key, watched in list(self._watched.items()):
            watched.listeners.discard(changed)
            if not watched.listeners:
                del self._watched[key]
                task = asyncio.create_task(watched.informer.stop())
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)

    async def stop(self) -> None:
        # NB: pods that end meanwhile forget their objects.
        for watched in list(self._watched.values()):
            await watched.informer.stop()
        await asyncio.gather(*self._ending)
