"""The API server without HTTP: what the REST paths, the controllers, the scheduler and light nodes all write through.

Its methods are for writers and readers in the same process. They go through the same chain as requests: `writer` and
`deleter`, which take objects that they may keep.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from tinykube.apiserver import lifecycle
from tinykube.apiserver.addresses import DEFAULT_RANGE, ServiceRange
from tinykube.apiserver.autoscaler_forms import first_version_printer, first_version_rules, from_second, to_second
from tinykube.apiserver.builtin import RESOURCES, ResourceInfo
from tinykube.apiserver.deleting import LASTING, ObjectDeleter
from tinykube.apiserver.eventforms import from_core, to_core
from tinykube.apiserver.fieldset import Object
from tinykube.apiserver.hooks import SYSTEM, Hooks, KindRules, User
from tinykube.apiserver.kinds import Convert, Kinds, Named
from tinykube.apiserver.printers import Printer
from tinykube.apiserver.rules import builtin_rules
from tinykube.apiserver.selectors import parse_fields, parse_labels
from tinykube.apiserver.server_time import ServerTime
from tinykube.apiserver.store import Journal, ObjectStore, Selection, StoreEntry, Subscriber
from tinykube.apiserver.tables import printer_for
from tinykube.apiserver.writes import BY_SYSTEM, Delete, WriteOptions
from tinykube.apiserver.writing import ObjectWriter, copy

NAMESPACES = (*LASTING, "kube-node-lease")


class Registry:
    """All objects of the cluster and the chain that writes them.

    `clock` gives seconds since 1970. With a journal, load what it holds by `restore` before the first use.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        hooks: Hooks | None = None,
        service_range: ServiceRange = DEFAULT_RANGE,
    ) -> None:
        self.hooks = hooks or Hooks()
        self.service_range = service_range
        self.store = ObjectStore()
        self.kinds = Kinds(self.store)
        self._time = ServerTime(clock)
        for info in RESOURCES:
            rules = builtin_rules(info, self.store, service_range)
            if info.group == "events.k8s.io":
                self.kinds.add(info, rules, table="events", outward=from_core, inward=to_core)
            elif info.api_version == "autoscaling/v1":
                rules, printer = first_version_rules(rules), first_version_printer(printer_for(info.group, info.plural))
                self.kinds.add(info, rules, outward=from_second, inward=to_second, printer=printer)
            else:
                self.kinds.add(info, rules)
        self._namespaces = self.kinds.find("namespaces").table
        self.writer = ObjectWriter(self.kinds, self.store, self.hooks, self._time)
        self.deleter = ObjectDeleter(self.kinds, self.writer)
        self._add_namespaces()

    def restore(self, journal: Journal, objects: list[tuple[str, StoreEntry]], version: int) -> None:
        """Go on from what a journal holds, and write to it from now on. Only on an unused registry."""
        self.store.restore(journal, objects, version)
        self._add_namespaces()

    def _add_namespaces(self) -> None:
        for name in NAMESPACES:
            if self._namespaces.get("", name) is None:
                obj: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
                kind = self.kinds.find("namespaces")
                lifecycle.prepare_create(kind.info, obj, uid=str(uuid.uuid4()), now=self.now())
                kind.rules.default(obj)
                self._namespaces.put("", name, obj)

    # -- reading ---------------------------------------------------------------------------------------------
    def now(self) -> str:
        """RFC 3339, whole seconds."""
        return self._time.now()

    def resource(self, resource: Named) -> ResourceInfo:
        """By plural (`pods`), qualified plural (`widgets.example.com`) or (group, plural). Raises Terminal."""
        return self.kinds.find(resource).info

    def get(self, resource: Named, namespace: str | None, name: str) -> Object | None:
        """The stored object; never change it, `copy` it."""
        kind = self.kinds.find(resource)
        entry = kind.table.get(namespace or "", name)
        return None if entry is None else kind.show(entry).obj

    def list(
        self, resource: Named, namespace: str | None = None, labels: str | None = None, fields: str | None = None
    ) -> list[Object]:
        """The stored objects in the order of their keys; selectors as in URLs. Never change them."""
        kind = self.kinds.find(resource)
        selection = Selection(
            namespace=namespace or "",
            labels=parse_labels(labels) if labels else None,
            fields=parse_fields(fields, kind.info.selectable) if fields else None,
        )
        return [kind.show(entry).obj for entry in kind.table.select(selection)]

    def subscribe(self, resource: Named, callback: Subscriber) -> Callable[[], None]:
        """Call back after every write, in order, before the writer goes on; gives the function that ends it.

        `callback(type, obj, old)` with ADDED, MODIFIED or DELETED; it must not write and must not raise.
        """
        subscribers = self.kinds.find(resource).table.subscribers
        subscribers.append(callback)
        return lambda: subscribers.remove(callback)

    # -- what is served --------------------------------------------------------------------------------------
    def serve(
        self,
        info: ResourceInfo,
        rules: KindRules,
        *,
        preferred: bool = True,
        outward: Convert | None = None,
        inward: Convert | None = None,
        printer: Printer | None = None,
    ) -> None:
        """Serve a version of a custom kind, or replace its rules."""
        self.kinds.add(info, rules, preferred=preferred, outward=outward, inward=inward, printer=printer)

    def reread(self, info: ResourceInfo) -> None:
        """Read the stored objects of a custom kind by its version and defaults of now."""
        kind = self.kinds.find(info)

        def change(obj: Object) -> Object:
            new = {**copy(obj), "apiVersion": info.api_version}
            kind.rules.default(new)
            return obj if new == obj else new

        kind.table.reread(change)

    def withdraw(self, group: str, plural: str) -> None:
        """Serve a custom kind no more and forget its objects."""
        table = self.kinds.find((group, plural)).table
        self.kinds.remove(group, plural)
        for entry in tuple(table.items.values()):
            table.remove(entry)
        self.store.drop(table.resource)

    # -- writing ---------------------------------------------------------------------------------------------
    async def create(
        self,
        resource: Named,
        namespace: str | None,
        obj: Object,
        *,
        user: User = SYSTEM,
        manager: str = "",
    ) -> Object:
        """Raises ApiFailure (AlreadyExists, NotFound for the namespace, Invalid, Forbidden)."""
        kind = self.kinds.find(resource)
        write = BY_SYSTEM if user is SYSTEM and not manager else WriteOptions(user=user, manager=manager)
        return (await self.writer.create(kind, namespace or "", copy(obj), write)).obj

    async def update(
        self,
        resource: Named,
        namespace: str | None,
        name: str,
        obj: Object,
        *,
        subresource: str | None = None,
        user: User = SYSTEM,
        manager: str = "",
    ) -> Object:
        """Raises ApiFailure; Conflict when `obj` carries a resourceVersion that is no longer the newest."""
        kind = self.kinds.find(resource)
        write = WriteOptions(user=user, manager=manager)
        replacement = copy(obj)
        entry = await self.writer.update(kind, namespace or "", name, lambda _: replacement, subresource or "", write)
        return entry.obj

    async def patch(
        self,
        resource: Named,
        namespace: str | None,
        name: str,
        patch: Any,
        type: str,
        *,
        subresource: str | None = None,
        manager: str = "",
        force: bool = False,
        user: User = SYSTEM,
    ) -> Object:
        """`type` is json, merge, strategic or apply (which needs a manager, and creates what is missing)."""
        kind = self.kinds.find(resource)
        operation = "Apply" if type == "apply" else "Update"
        write = WriteOptions(user=user, manager=manager, operation=operation)
        patch = copy(patch)
        entry = await self.writer.patch(kind, namespace or "", name, patch, type, subresource or "", write, force=force)
        return entry.obj

    async def delete(
        self,
        resource: Named,
        namespace: str | None,
        name: str,
        *,
        propagation: str | None = None,
        preconditions: Object | None = None,
        grace: int | None = None,
        user: User = SYSTEM,
    ) -> Object:
        """Delete, or mark for deletion what has finalizers or runs on a node; gives the last version."""
        kind = self.kinds.find(resource)
        wanted = preconditions or {}
        options = Delete(grace, propagation, wanted.get("uid"), wanted.get("resourceVersion"))
        entry, _ = await self.deleter.delete(kind, namespace or "", name, options, WriteOptions(user=user))
        return entry.obj
