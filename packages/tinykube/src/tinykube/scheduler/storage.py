"""Feeds claims, volumes and what drivers say of nodes into the scheduler's cache, and wakes pods that wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kubekit.scheduling.queue import ClusterEvent, Queue
from kubekit.scheduling.volumes import facts
from kubekit.scheduling.volumes.store import VolumeStore
from tinykube.controllers.following import follow

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
Change = Callable[[str, Object | None], ClusterEvent]
"""change(key, object): the object is None when it is gone."""


class StorageTracker:
    """Keeps a store of volumes true to the API server. `wake` is called when the queue may have something to do."""

    def __init__(self, registry: Registry, store: VolumeStore, queue: Queue, wake: Callable[[], None]) -> None:
        self._registry = registry
        self._store = store
        self._queue = queue
        self._wake = wake

    def start(self) -> None:
        """Subscribe, and read what is there."""
        storage = "storage.k8s.io"
        for resource, change in (
            ("persistentvolumeclaims", self._claim),
            ("persistentvolumes", self._volume),
            ((storage, "storageclasses"), self._class),
            ((storage, "csinodes"), self._limits),
            ((storage, "csidrivers"), self._driver),
            ((storage, "csistoragecapacities"), self._capacity),
            ((storage, "volumeattachments"), self._attachment),
        ):
            self._follow(resource, change)

    def _follow(self, resource: str | tuple[str, str], change: Change) -> None:
        def listener(event: str, obj: Object, old: Object | None) -> None:
            meta = obj["metadata"]
            key = f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else meta["name"]
            changed = change(key, None if event == "DELETED" else obj)
            if self._queue.notify(changed, "", asyncio.get_running_loop().time()):
                self._wake()

        follow(self._registry, self._registry.resource(resource), listener)

    def _claim(self, key: str, obj: Object | None) -> ClusterEvent:
        if obj is None:
            self._store.remove_claim(key)
        else:
            self._store.set_claim(facts.compile_claim(obj))
        return ClusterEvent.CLAIM_CHANGED

    def _volume(self, key: str, obj: Object | None) -> ClusterEvent:
        if obj is None:
            self._store.remove_volume(key)
        else:
            self._store.set_volume(facts.compile_volume(obj))
        return ClusterEvent.VOLUME_CHANGED

    def _class(self, key: str, obj: Object | None) -> ClusterEvent:
        _put(self._store.classes, key, obj, facts.compile_class)
        return ClusterEvent.STORAGE_CHANGED

    def _limits(self, key: str, obj: Object | None) -> ClusterEvent:
        _put(self._store.node_limits, key, obj, facts.compile_node_limits)
        return ClusterEvent.ATTACHMENTS_CHANGED

    def _driver(self, key: str, obj: Object | None) -> ClusterEvent:
        self._store.tracked_drivers.discard(key)
        if obj is not None and facts.tracks_capacity(obj):
            self._store.tracked_drivers.add(key)
        return ClusterEvent.STORAGE_CHANGED

    def _capacity(self, key: str, obj: Object | None) -> ClusterEvent:
        _put(self._store.capacities, key, obj, facts.compile_capacity)
        return ClusterEvent.STORAGE_CHANGED

    def _attachment(self, key: str, obj: Object | None) -> ClusterEvent:
        if obj is None:
            self._store.remove_attachment(key)
        else:
            self._store.set_attachment(facts.compile_attachment(obj))
        return ClusterEvent.ATTACHMENTS_CHANGED


def _put(stored: dict[str, Any], key: str, obj: Object | None, read: Callable[[Object], Any]) -> None:
    if obj is None:
        stored.pop(key, None)
    else:
        stored[key] = read(obj)
