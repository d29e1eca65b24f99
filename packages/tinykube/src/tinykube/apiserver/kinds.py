"""The currently served resources: the built-in ones and those that CRDs add and remove.

A resource served in several versions is one table; `Kind` is one version of it. Objects are stored in the storage
version; a kind of another version converts on the way in and out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kubekit.errors import Terminal
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.hooks import KindRules
from tinykube.apiserver.printers import DEFAULT, Printer
from tinykube.apiserver.store import ObjectStore, StoreEntry, Table
from tinykube.apiserver.tables import printer_for

Object = dict[str, Any]
Convert = Callable[[Object], Object]

# A resource as callers may name it: "pods", "widgets.example.com", ("apps", "deployments") or what `resource` gave.
Named = str | tuple[str, str] | ResourceInfo


@dataclass(frozen=True)
class Kind:
    """One served version of a resource. `outward` turns a stored object into this version, `inward` back."""

    info: ResourceInfo
    rules: KindRules
    table: Table
    outward: Convert | None = None
    inward: Convert | None = None
    printer: Printer = DEFAULT

    def stored(self, obj: Object) -> Object:
        """An object of this version as it is stored."""
        return obj if self.inward is None else self.inward(obj)

    def show(self, entry: StoreEntry) -> StoreEntry:
        """The entry as this version shows it."""
        if self.outward is None:
            return entry
        return StoreEntry(entry.namespace, entry.name, entry.key, self.outward(entry.obj), entry.version)


class Kinds:
    """Lookups by URL, by name and by apiVersion and kind; `changes` counts additions and removals, for caches."""

    def __init__(self, store: ObjectStore) -> None:
        self.changes = 0
        self._store = store
        self._served: dict[tuple[str, str, str], Kind] = {}
        self._preferred: dict[tuple[str, str], Kind] = {}
        self._plain: dict[str, Kind] = {}
        self._by_kind: dict[tuple[str, str], Kind] = {}

    def add(
        self,
        info: ResourceInfo,
        rules: KindRules,
        *,
        preferred: bool = True,
        table: str = "",
        outward: Convert | None = None,
        inward: Convert | None = None,
        printer: Printer | None = None,
    ) -> Kind:
        """Serve a version of a resource, or serve it with other rules. `table` names another resource's storage."""
        indexed = ("spec.nodeName",) if info.plural == "pods" and not info.group else ()
        columns = printer or printer_for(info.group, info.plural)
        kind = Kind(info, rules, self._store.table(table or info.qualified, indexed), outward, inward, columns)
        self._served[info.group, info.version, info.plural] = kind
        self._by_kind[info.api_version, info.kind] = kind
        if preferred or (info.group, info.plural) not in self._preferred:
            self._preferred[info.group, info.plural] = kind
            known = self._plain.get(info.plural)
            if known is None or known.info.group == info.group:
                self._plain[info.plural] = kind
        self.changes += 1
        return kind

    def remove(self, group: str, plural: str) -> None:
        """Serve a resource no more, in no version. Stored objects stay until `ObjectStore.drop`."""
        for address in [a for a in self._served if a[0] == group and a[2] == plural]:
            info = self._served.pop(address).info
            self._by_kind.pop((info.api_version, info.kind), None)
        self._preferred.pop((group, plural), None)
        if plural in self._plain and self._plain[plural].info.group == group:
            del self._plain[plural]
        self.changes += 1

    def served(self, group: str, version: str, plural: str) -> Kind | None:
        return self._served.get((group, version, plural))

    def of(self, api_version: str, kind: str) -> Kind | None:
        return self._by_kind.get((api_version, kind))

    def find(self, resource: Named) -> Kind:
        """Raises Terminal for a resource that is not served."""
        kind: Kind | None
        if isinstance(resource, str):
            kind = self._plain.get(resource)
            if kind is None:
                plural, _, group = resource.partition(".")
                kind = self._preferred.get((group, plural))
        elif isinstance(resource, ResourceInfo):
            kind = self._served.get((resource.group, resource.version, resource.plural))
        else:
            kind = self._preferred.get(resource)
        if kind is None:
            raise Terminal(f"the API server serves no resource {resource!r}", cure="create its CRD first")
        return kind

    def serves(self, resource: tuple[str, str]) -> bool:
        """Return whether a resource, by group and plural, is served in any version."""
        return resource in self._preferred

    def serves_group(self, group: str) -> bool:
        """Return whether any resource of a group is served."""
        return any(address[0] == group for address in self._served)

    def __iter__(self) -> Iterator[Kind]:
        return iter(tuple(self._served.values()))
