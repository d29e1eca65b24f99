"""The keys of the objects that a controller looks at, by uid: a change of an owned object only has its owner's uid.

Invariant: an object has a key from its first event to its deletion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinykube.controllers.worker import KeyWorker

Object = Mapping[str, Any]


class OwnerKeys:
    """Keys as `namespace/name`. Each change of an object, or of one that it owns, makes the worker look at its key."""

    def __init__(self, worker: KeyWorker[str]) -> None:
        self._worker = worker
        self._keys: dict[str, str] = {}

    def on_owner(self, event: str, obj: Object, old: Object | None) -> None:
        """Look at an object that was written, and forget a deleted one. A listener for `follow`."""
        meta = obj["metadata"]
        if event == "DELETED":
            self._keys.pop(meta["uid"], None)
            return
        self._keys[meta["uid"]] = f"{meta['namespace']}/{meta['name']}"
        self._worker.add(self._keys[meta["uid"]])

    def look(self, reference: Object | None) -> None:
        """Look at the owner that a reference names, if the controller has it."""
        if reference is not None and reference["uid"] in self._keys:
            self._worker.add(self._keys[reference["uid"]])

    def look_in(self, namespace: str) -> None:
        """Look at all objects of a namespace."""
        for key in self._keys.values():
            if key.startswith(f"{namespace}/"):
                self._worker.add(key)

    def look_at(self, namespace: str, name: str) -> None:
        """Look at the object of that name, if there is one."""
        if f"{namespace}/{name}" in self._keys.values():
            self._worker.add(f"{namespace}/{name}")
