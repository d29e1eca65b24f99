"""The versioned object store: what etcd and the watch cache are to the real API server, in one.

Invariants:

- One counter gives every write its resourceVersion; events of a resource are in its order.
- A stored object is never changed again. A write stores another dict (which may share parts with the old one), so
  lists, snapshots and the event history hold references, not copies.
- An entry's JSON is encoded at most once for all readers: lists, watches, the journal.
- With a journal, a write is on disk (in the operating system's hands) before any reader sees it.
- No write scans: objects are found by key, by namespace and by the indexed fields, and so are watchers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import msgspec

from tinykube.apiserver.failure import gone
from tinykube.apiserver.selectors import CompiledSelector, FieldSelector, field_text

Object = dict[str, Any]

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"
HISTORY_EVENTS = 4096  # of one resource; a watch that is further behind gets 410

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(dict[str, Any]).decode


class StoreEntry:
    """One version of one object.

    Its JSON takes a fifth of the memory of its dicts, so a version that is only remembered (`fold`) keeps the JSON.
    """

    __slots__ = ("_obj", "_raw", "key", "name", "namespace", "version")

    def __init__(self, namespace: str, name: str, key: str, obj: Object, version: int) -> None:
        self.namespace = namespace
        self.name = name
        self.key = key
        self.version = version
        self._obj: Object | None = obj
        self._raw: bytes | None = None

    @property
    def obj(self) -> Object:
        obj = self._obj
        return obj if obj is not None else decode(self.raw)

    def fold(self) -> None:
        if self._obj is not None:
            self._raw = self.raw
            self._obj = None

    @property
    def raw(self) -> bytes:
        raw = self._raw
        if raw is None:
            raw = self._raw = encode(self._obj)
        return raw


class StoreEvent:
    """One write as watchers see it. `entry` is the new version; of a deletion the last, with the deletion's number."""

    __slots__ = ("_left", "_lines", "entry", "old", "type", "version")

    def __init__(self, type: str, entry: StoreEntry, old: StoreEntry | None) -> None:
        self.type = type
        self.entry = entry
        self.old = old
        self.version = entry.version
        self._lines: dict[str, bytes] = {}
        self._left: StoreEntry | None = None

    def settle(self) -> None:
        """All watchers have received it: from now on this is only history."""
        self._lines.clear()
        if self.old is not None:
            self.old.fold()
        if self.type == DELETED:
            self.entry.fold()

    def line(self, type: str) -> bytes:
        """The line of the watch stream, encoded once for all watchers that see the event as this type."""
        line = self._lines.get(type)
        if line is None:
            raw = self.seen_as(type).raw
            line = self._lines[type] = b'{"type":"%b","object":%b}\n' % (type.encode(), raw)
        return line

    def seen_as(self, type: str) -> StoreEntry:
        """The version to show: a watcher whose selector the object has left gets its previous content."""
        if type != DELETED or self.type == DELETED or self.old is None:
            return self.entry
        if self._left is None:
            old = self.old
            metadata = {**old.obj["metadata"], "resourceVersion": str(self.version)}
            self._left = StoreEntry(old.namespace, old.name, old.key, {**old.obj, "metadata": metadata}, self.version)
        return self._left


class Selection(msgspec.Struct, frozen=True):
    """The selection of a list or a watch. Empty strings and None mean all."""

    namespace: str = ""
    name: str = ""
    labels: CompiledSelector | None = None
    fields: FieldSelector | None = None

    def matches(self, entry: StoreEntry) -> bool:
        if self.namespace and entry.namespace != self.namespace:
            return False
        if self.name and entry.name != self.name:
            return False
        if self.labels is not None and not self.labels.matches(entry.obj["metadata"].get("labels")):
            return False
        return self.fields is None or self.fields.matches(entry.obj)

    def seen_type(self, event: StoreEvent) -> str | None:
        """As what a watcher with this selection sees an event, None if it does not concern it."""
        now = event.type != DELETED and self.matches(event.entry)
        before = event.old is not None and self.matches(event.old)
        if now:
            return MODIFIED if before else ADDED
        return DELETED if before else None


class StoreWatcher(Protocol):
    selection: Selection

    def deliver(self, event: StoreEvent) -> None: ...

    def close(self) -> None: ...


Subscriber = Callable[[str, Object, Object | None], None]


class Journal(Protocol):
    def put(self, resource: str, key: str, version: int, raw: bytes) -> None: ...

    def remove(self, resource: str, key: str, version: int) -> None: ...


class Table:
    """All objects of one resource, its recent events and who listens. Made by `ObjectStore.table`."""

    def __init__(self, store: ObjectStore, resource: str, indexed: tuple[str, ...]) -> None:
        self.resource = resource
        self.items: dict[str, StoreEntry] = {}
        self.by_namespace: dict[str, dict[str, StoreEntry]] = {}
        self.subscribers: list[Subscriber] = []
        self.compacted = store.version
        self._store = store
        self._paths = tuple((name, tuple(name.split("."))) for name in indexed)
        self._by_field: dict[tuple[str, str], dict[str, StoreEntry]] = {}
        self._history: deque[StoreEvent] = deque()
        self._watchers: dict[tuple[str, str], dict[StoreWatcher, None]] = {}
        self._sorted: list[str] | None = None

    # -- reading ---------------------------------------------------------------------------------------------
    def get(self, namespace: str, name: str) -> StoreEntry | None:
        return self.items.get(f"{namespace}/{name}")

    def select(self, selection: Selection) -> list[StoreEntry]:
        """Every entry that matches, in the order of keys."""
        pool = self._pool(selection)
        if pool is None:
            keys = self._sorted
            if keys is None:
                keys = self._sorted = sorted(self.items)
            items = self.items
            found = [items[key] for key in keys]
        else:
            found = [pool[key] for key in sorted(pool)]
        if selection.labels is None and selection.fields is None and not selection.name:
            return found
        return [entry for entry in found if selection.matches(entry)]

    def _pool(self, selection: Selection) -> dict[str, StoreEntry] | None:
        fields = selection.fields.equal if selection.fields is not None else {}
        name = selection.name or fields.get("metadata.name")
        namespace = selection.namespace
        if name and (namespace or not self.by_namespace or "" in self.by_namespace):
            entry = self.get(namespace, name)
            return {} if entry is None else {entry.key: entry}
        for field, _ in self._paths:
            value = fields.get(field)
            if value:
                pool = self._by_field.get((field, value), {})
                return {key: e for key, e in pool.items() if e.namespace == namespace} if namespace else pool
        return self.by_namespace.get(namespace, {}) if namespace else None

    # -- listening -------------------------------------------------------------------------------------------
    def watch(self, watcher: StoreWatcher) -> None:
        self._watchers.setdefault(self._bucket(watcher.selection), {})[watcher] = None

    def unwatch(self, watcher: StoreWatcher) -> None:
        bucket = self._bucket(watcher.selection)
        watchers = self._watchers.get(bucket, {})
        watchers.pop(watcher, None)
        if not watchers:
            self._watchers.pop(bucket, None)

    def end(self) -> None:
        """End all watches: the resource is served no more."""
        for bucket in tuple(self._watchers.values()):
            for watcher in tuple(bucket):
                watcher.close()

    def _bucket(self, selection: Selection) -> tuple[str, str]:
        fields = selection.fields.equal if selection.fields is not None else {}
        name = selection.name or fields.get("metadata.name")
        if name:
            return "metadata.name", name
        for field, _ in self._paths:
            if fields.get(field):
                return field, fields[field]
        return "metadata.namespace", selection.namespace

    def compact(self, version: int) -> None:
        """Forget the events up to a version; a watch that needs one of them gets 410."""
        history = self._history
        while history and history[0].version <= version:
            self.compacted = history.popleft().version

    def events_after(self, version: int) -> Iterator[StoreEvent]:
        """The events since `version`, oldest first. Raises ApiFailure 410 when some are no longer known."""
        if version < self.compacted:
            raise gone(f"too old resource version: {version} ({self.compacted})")
        recent: list[StoreEvent] = []
        for event in reversed(self._history):
            if event.version <= version:
                break
            recent.append(event)
        return reversed(recent)

    # -- writing ---------------------------------------------------------------------------------------------
    def put(self, namespace: str, name: str, obj: Object) -> StoreEntry:
        """Store a new version; the caller gives up `obj` and has a `metadata` of its own in it."""
        store = self._store
        version = store.version + 1
        obj["metadata"]["resourceVersion"] = str(version)
        key = f"{namespace}/{name}"
        entry = StoreEntry(namespace, name, key, obj, version)
        if store.journal is not None:
            store.journal.put(self.resource, key, version, entry.raw)
        store.version = version
        old = self.items.get(key)
        self._place(entry, old)
        self._publish(StoreEvent(ADDED if old is None else MODIFIED, entry, old))
        return entry

    def remove(self, entry: StoreEntry, content: Object | None = None) -> StoreEntry:
        """Delete; gives the last version (`content`, if it changed with this write) with the deletion's number."""
        store = self._store
        version = store.version + 1
        if store.journal is not None:
            store.journal.remove(self.resource, entry.key, version)
        store.version = version
        obj = content or entry.obj
        metadata = {**obj["metadata"], "resourceVersion": str(version)}
        last = StoreEntry(entry.namespace, entry.name, entry.key, {**obj, "metadata": metadata}, version)
        del self.items[entry.key]
        self._sorted = None
        space = self.by_namespace[entry.namespace]
        del space[entry.key]
        if not space:
            del self.by_namespace[entry.namespace]
        for field, path in self._paths:
            self._unindex((field, field_text(entry.obj, path)), entry.key)
        self._publish(StoreEvent(DELETED, last, entry))
        return last

    def reread(self, change: Callable[[Object], Object]) -> None:
        """Read every object by `change`, which returns its argument for one that stays as it is.

        Versions stay, and nothing is written or told to watchers: a real store reads old objects by new rules too.
        """
        for entry in tuple(self.items.values()):
            if (new := change(entry.obj)) is not entry.obj:
                self._place(StoreEntry(entry.namespace, entry.name, entry.key, new, entry.version), entry)

    def load(self, entry: StoreEntry) -> None:
        """Take an entry over from a journal, before the first watcher."""
        self._place(entry, None)

    def clear(self) -> None:
        """Drop everything, before the first watcher."""
        self.items.clear()
        self.by_namespace.clear()
        self._by_field.clear()
        self._history.clear()
        self._sorted = None

    def _place(self, entry: StoreEntry, old: StoreEntry | None) -> None:
        self.items[entry.key] = entry
        if old is None:
            self._sorted = None
        space = self.by_namespace.get(entry.namespace)
        if space is None:
            space = self.by_namespace[entry.namespace] = {}
        space[entry.key] = entry
        for field, path in self._paths:
            value = field_text(entry.obj, path)
            if old is not None and (before := field_text(old.obj, path)) != value:
                self._unindex((field, before), entry.key)
            if value:
                self._by_field.setdefault((field, value), {})[entry.key] = entry

    def _unindex(self, index: tuple[str, str], key: str) -> None:
        pool = self._by_field.get(index)
        if pool is not None:
            pool.pop(key, None)
            if not pool:
                del self._by_field[index]

    def _publish(self, event: StoreEvent) -> None:
        history = self._history
        history.append(event)
        if len(history) > HISTORY_EVENTS:
            self.compacted = history.popleft().version
        entry = event.entry
        watchers = self._watchers
        if watchers:
            buckets = [
                ("metadata.namespace", ""),
                ("metadata.namespace", entry.namespace),
                ("metadata.name", entry.name),
            ]
            for field, path in self._paths:
                value = field_text(entry.obj, path)
                buckets.append((field, value))
                if event.old is not None and (before := field_text(event.old.obj, path)) != value:
                    buckets.append((field, before))
            for bucket in dict.fromkeys(buckets):
                for watcher in tuple(watchers.get(bucket, ())):
                    watcher.deliver(event)
        for subscriber in tuple(self.subscribers):
            subscriber(event.type, entry.obj, event.old.obj if event.old is not None else None)
        event.settle()


class ObjectStore:
    """The tables and their common counter."""

    def __init__(self, journal: Journal | None = None, version: int = 0) -> None:
        self.version = version
        self.compacted = version
        self.journal = journal
        self._tables: dict[str, Table] = {}

    def table(self, resource: str, indexed: tuple[str, ...] = ()) -> Table:
        """The table of a resource (`pods`, `widgets.example.com`), made when it is first asked for."""
        table = self._tables.get(resource)
        if table is None:
            table = self._tables[resource] = Table(self, resource, indexed)
        return table

    def compact(self, version: int) -> None:
        """Forget what was before a version: events, and the pages of lists."""
        self.compacted = version
        for table in self._tables.values():
            table.compact(version)

    def restore(self, journal: Journal, objects: Iterable[tuple[str, StoreEntry]], version: int) -> None:
        """Take over a journal's objects and counter; from now on every write goes to it first."""
        for table in self._tables.values():
            table.clear()
        self.version = self.compacted = version
        for resource, entry in objects:
            self.table(resource).load(entry)
        for table in self._tables.values():
            table.compacted = version
        self.journal = journal

    def drop(self, resource: str) -> None:
        """Forget an empty table and end its watches: its CRD is gone."""
        table = self._tables.pop(resource, None)
        if table is not None:
            table.end()
