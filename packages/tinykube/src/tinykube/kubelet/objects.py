"""The ConfigMaps and Secrets that a node's pods mount, each watched once for all of them.

An object is watched from the first pod that needs it until the kubelet ends; earlier users are notified of changes, so
that mounted files follow them.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kubekit.kube import Client, Informer


class Objects:
    """Single objects by kind, namespace and name."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._informers: dict[tuple[Any, str, str], Informer[Any]] = {}
        self._listeners: dict[tuple[Any, str, str], set[asyncio.Event]] = {}

    async def get(self, kind: type[Any], namespace: str, name: str, changed: asyncio.Event) -> Any | None:
        """Return the current object, None when there is none. `changed` is set whenever it changes."""
        key = (kind, namespace, name)
        informer = self._informers.get(key)
        listeners = self._listeners.setdefault(key, set())
        if informer is None:
            informer = Informer(self._client, kind, namespace, fields=f"metadata.name={name}")
            self._informers[key] = informer

            def tell(old: Any, new: Any) -> None:
                for listener in listeners:
                    listener.set()

            informer.add_handler(tell)
            informer.start()
        await informer.synced()
        listeners.add(changed)
        return informer.get(f"{namespace}/{name}")

    def forget(self, changed: asyncio.Event) -> None:
        """Remove the listener `changed`."""
        for listeners in self._listeners.values():
            listeners.discard(changed)

    async def stop(self) -> None:
        for informer in self._informers.values():
            await informer.stop()
