"""The cache of an informer: objects by key, with indexes. Pure, so that tests can try any history.

Invariants:

- Every index equals a scan over all objects at any time.
- Changes come as (old, new): an object deleted and made again under its name (another uid) is a delete and an add.
- Replacing the contents (`begin`, `upsert` ..., `finish`) reports exactly the differences, deletes included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from kubekit.api.meta import KubeObject, key

K = TypeVar("K", bound=KubeObject)
IndexBy = Callable[[K], Iterable[str]]
Change = tuple[K | None, K | None]
"""(old, new); one of them is None for an add or a delete."""


class InformerCache(Generic[K]):
    def __init__(self) -> None:
        self._objects: dict[str, K] = {}
        self._by: dict[str, IndexBy[K]] = {}
        self._indexes: dict[str, dict[str, dict[str, None]]] = {}  # name -> value -> keys, in order of arrival
        self._seen: set[str] | None = None  # the keys of the list that is under way

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, name: str) -> K | None:
        return self._objects.get(name)

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[K]:
        return iter(self._objects.values())

    def keys(self) -> Iterable[str]:
        return self._objects.keys()

    def by_index(self, name: str, value: str) -> list[K]:
        """Objects that the index `name` files under `value`. KeyError for an unknown index."""
        return [self._objects[k] for k in self._indexes[name].get(value, ())]

    # -- writing ---------------------------------------------------------------------------------------------------

    def add_index(self, name: str, by: IndexBy[K]) -> None:
        """Files all objects, present and future, under the values that `by` gives."""
        self._by[name] = by
        self._indexes[name] = {}
        for k, obj in self._objects.items():
            self._file(name, k, obj)

    def upsert(self, obj: K) -> list[Change[K]]:
        """`obj` exists. Nothing is reported when its resource version is known already."""
        k = key(obj)
        if self._seen is not None:
            self._seen.add(k)
        old = self._objects.get(k)
        if old is not None:
            if old.metadata.resource_version == obj.metadata.resource_version and obj.metadata.resource_version:
                return []
            self._unfile(k, old)
        self._objects[k] = obj
        for name in self._by:
            self._file(name, k, obj)
        if old is not None and old.metadata.uid != obj.metadata.uid:
            return [(old, None), (None, obj)]
        return [(old, obj)]

    def remove(self, k: str) -> list[Change[K]]:
        old = self._objects.pop(k, None)
        if old is None:
            return []
        self._unfile(k, old)
        return [(old, None)]

    def begin(self) -> None:
        """A new list starts: what is not upserted until `finish` is gone."""
        self._seen = set()

    def finish(self) -> list[Change[K]]:
        """The list that `begin` has started is complete."""
        seen = self._seen or set()
        gone = [k for k in self._objects if k not in seen]
        self._seen = None
        return [change for k in gone for change in self.remove(k)]

    def _file(self, name: str, k: str, obj: K) -> None:
        index = self._indexes[name]
        for value in self._by[name](obj):
            index.setdefault(value, {})[k] = None

    def _unfile(self, k: str, obj: K) -> None:
        for name, by in self._by.items():
            index = self._indexes[name]
            for value in by(obj):
                keys = index.get(value)
                if keys is not None:
                    keys.pop(k, None)
                    if not keys:
                        del index[value]
