"""Values that controllers and admission note of named objects, by the namespaces of the objects.

Invariant: a namespace without an object has no entry, so that thousands of short namespaces leave nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

V = TypeVar("V")


class ByNamespace(Generic[V]):
    """Values by namespace and name."""

    def __init__(self) -> None:
        self._named: dict[str, dict[str, V]] = {}

    def of(self, namespace: str) -> Mapping[str, V]:
        """Return the values of a namespace, by name."""
        return self._named.get(namespace, {})

    def put(self, namespace: str, name: str, value: V) -> None:
        self._named.setdefault(namespace, {})[name] = value

    def discard(self, namespace: str, name: str) -> None:
        named = self._named.get(namespace, {})
        named.pop(name, None)
        if not named:
            self._named.pop(namespace, None)

    def values(self) -> Iterator[V]:
        """Return the values of all namespaces."""
        for named in self._named.values():
            yield from named.values()
