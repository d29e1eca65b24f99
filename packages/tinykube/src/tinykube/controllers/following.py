"""Hearing of every write of a resource, from what is there already on.

A listener runs inside the write of another caller, which must not fail for a listener's mistake: an exception of a
listener is logged with its trace, and the write goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tinykube.apiserver.builtin import ResourceInfo

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
Listener = Callable[[str, Object, Object | None], None]  # event type, object, what it was before
_log = logging.getLogger("tinykube.controllers")


def follow(registry: Registry, resource: ResourceInfo, listener: Listener, *, existing: bool = True) -> None:
    """Tells `listener` of every write from now on, and first (as ADDED) of what exists."""

    def guarded(event: str, obj: Object, old: Object | None) -> None:
        try:
            listener(event, obj, old)
        except Exception:
            meta = obj["metadata"]
            _log.exception("%s %s/%s was not followed", resource.plural, meta.get("namespace", ""), meta["name"])

    registry.subscribe(resource, guarded)
    if existing:
        for obj in registry.list(resource):
            guarded("ADDED", obj, None)
