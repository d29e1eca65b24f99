"""The EndpointSlices of each Service, of all writers: an index that follows every write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from tinykube.controllers.following import follow

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
Key = tuple[str, str]  # namespace, name
_SERVICE: Final = "kubernetes.io/service-name"


def _ignore(key: Key) -> None:
    """Do nothing, for callers that look when they are asked."""


class SlicesOfServices:
    """Slices by (namespace, name of the Service). `changed` is called with the key of each Service that has others."""

    def __init__(self, registry: Registry, changed: Callable[[Key], None] = _ignore) -> None:
        self._changed = changed
        self._slices: dict[Key, dict[str, Object]] = {}
        follow(registry, registry.resource(("discovery.k8s.io", "endpointslices")), self._on_slice)

    def get(self, key: Key) -> Iterable[Object]:
        """Return the slices of a Service, by their names."""
        found = self._slices.get(key, {})
        return [found[name] for name in sorted(found)]

    def items(self) -> Iterator[tuple[Key, Object]]:
        for key, pieces in self._slices.items():
            for piece in pieces.values():
                yield key, piece

    def _on_slice(self, event: str, obj: Object, old: Object | None) -> None:
        name = obj["metadata"]["name"]
        before, after = _service_of(old), None if event == "DELETED" else _service_of(obj)
        for key in (before, _service_of(obj)):
            if key in self._slices:
                self._slices[key].pop(name, None)
                if not self._slices[key]:
                    del self._slices[key]
        if after is not None:
            self._slices.setdefault(after, {})[name] = obj
        for key in dict.fromkeys((before, _service_of(obj))):
            if key is not None:
                self._changed(key)


def _service_of(piece: Object | None) -> Key | None:
    meta = (piece or {}).get("metadata") or {}
    name = (meta.get("labels") or {}).get(_SERVICE)
    return (meta["namespace"], name) if name else None
