"""Feeds resource claims, device classes and resource slices into the scheduler's cache, and wakes pods that wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kubekit.errors import InvalidInput
from kubekit.scheduling.devices.facts import compile_device_claim, compile_device_class
from kubekit.scheduling.devices.slices import compile_slice
from kubekit.scheduling.devices.store import DeviceStore
from kubekit.scheduling.queue import ClusterEvent, Queue
from tinykube.controllers.following import follow

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
_GROUP = "resource.k8s.io"
_log = logging.getLogger("tinykube.scheduler")


class DeviceTracker:
    """Keeps a store of devices true to the API server. `wake` is called when the queue may have something to do."""

    def __init__(self, registry: Registry, store: DeviceStore, queue: Queue, wake: Callable[[], None]) -> None:
        self._registry = registry
        self._store = store
        self._queue = queue
        self._wake = wake

    def start(self) -> None:
        """Subscribe, and read what is there."""
        for plural, change in (
            ("deviceclasses", self._class),
            ("resourceslices", self._slice),
            ("resourceclaims", self._claim),
        ):
            self._follow(plural, change)

    def changed(self) -> None:
        """Bring back the pods that wait for devices."""
        if self._queue.notify(ClusterEvent.DEVICES_CHANGED, "", asyncio.get_running_loop().time()):
            self._wake()

    def _follow(self, plural: str, change: Callable[[str, Object | None], None]) -> None:
        def listener(event: str, obj: Object, old: Object | None) -> None:
            meta = obj["metadata"]
            key = f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else meta["name"]
            try:
                change(key, None if event == "DELETED" else obj)
            except InvalidInput as error:
                _log.warning("%s %s is left out: %s", plural, key, error)
                change(key, None)
            self.changed()

        follow(self._registry, self._registry.resource((_GROUP, plural)), listener)

    def _claim(self, key: str, obj: Object | None) -> None:
        if obj is None:
            self._store.remove_claim(key)
        else:
            self._store.set_claim(compile_device_claim(obj))

    def _class(self, key: str, obj: Object | None) -> None:
        if obj is None:
            self._store.classes.pop(key, None)
        else:
            self._store.classes[key] = compile_device_class(obj)

    def _slice(self, key: str, obj: Object | None) -> None:
        if obj is None:
            self._store.remove_slice(key)
        else:
            self._store.set_slice(compile_slice(obj))
