"""Garbage collection by owner references: background, foreground and orphan.

The graph (objects and their owners) is updated incrementally by every write of every resource. An object whose
owners are all gone goes too; an owner deleted in the foreground waits for the dependents that block it; an orphaning
owner first takes itself out of its dependents. An owner of a kind that is not served is unknown, not gone, and so is a
namespaced owner of an object without a namespace: nothing is deleted for it. In a circle of owners no object waits for
another: the references of an object between two that wait are made non-blocking.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kubekit.errors import Terminal
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.lifecycle import FOREGROUND, ORPHAN
from tinykube.controllers.everything import Everything
from tinykube.controllers.pods import is_terminating
from tinykube.controllers.recorder import Recorder
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
_UNKNOWN_KIND_S: Final = 30.0


class Item(msgspec.Struct, frozen=True, gc=False):
    """The address of an object, and whether it waits for its dependents."""

    info: ResourceInfo
    namespace: str
    name: str
    foreground: bool = False


class OwnerVerdict(msgspec.Struct, frozen=True):
    """The consequence of its owners' state for an object: `delete` with a propagation, or `drop` references
    (by uid).
    """

    delete: str = ""
    drop: tuple[str, ...] = ()


def judge(alive: set[str], waiting: set[str], gone: set[str], *, has_dependents: bool) -> OwnerVerdict:
    """Owners that live, that wait in the foreground for their dependents, and that are gone, by uid."""
    if alive:
        return OwnerVerdict(drop=tuple(sorted(waiting | gone)))
    if waiting:
        return OwnerVerdict(delete="Foreground" if has_dependents else "Background")
    return OwnerVerdict(delete="Background") if gone else OwnerVerdict()


class GarbageCollector:
    """Deletes objects whose owners are all gone."""

    def __init__(self, registry: Registry, everything: Everything, recorder: Recorder) -> None:
        self._registry = registry
        self._recorder = recorder
        self._items: dict[str, Item] = {}
        self._dependents: dict[str, set[str]] = {}
        self._started = False
        self.dependents: KeyWorker[str] = KeyWorker("garbage collector", self._look_at_dependent)
        self.owners: KeyWorker[str] = KeyWorker("garbage collector (owners)", self._look_at_owner)
        everything.listen(self._follow)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return self.dependents, self.owners

    def start(self) -> None:
        """Everything that exists is known now: look at whose owners are not among it."""
        self._started = True
        for owner, dependents in self._dependents.items():
            if owner not in self._items:
                for uid in dependents:
                    self.dependents.add(uid)

    # -- the graph -----------------------------------------------------------------------------------------------
    def _follow(self, info: ResourceInfo, event: str, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        uid: str = meta["uid"]
        references = meta.get("ownerReferences") or ()
        before = (old["metadata"].get("ownerReferences") or ()) if old is not None else ()
        if event == "DELETED":
            self._items.pop(uid, None)
            for reference in references:
                self._unlink(reference["uid"], uid)
            for dependent in self._dependents.get(uid, ()):
                self.dependents.add(dependent)
            return
        finalizers = meta.get("finalizers") or ()
        deleting = is_terminating(obj) and bool(finalizers)
        foreground = deleting and FOREGROUND in finalizers
        known = self._items.get(uid)
        if known is None or known.foreground != foreground:
            self._items[uid] = Item(info, meta.get("namespace") or "", meta["name"], foreground)
        if deleting and (foreground or ORPHAN in finalizers):
            self.owners.add(uid)
        if references == before and known is not None:
            return
        for reference in before:
            self._unlink(reference["uid"], uid)
        for reference in references:
            owner = self._items.get(reference["uid"])
            self._dependents.setdefault(reference["uid"], set()).add(uid)
            if self._started and (owner is None or owner.foreground or not _may_own(owner, reference, meta)):
                self.dependents.add(uid)

    def _unlink(self, owner: str, dependent: str) -> None:
        dependents = self._dependents.get(owner)
        if dependents is None:
            return
        dependents.discard(dependent)
        if not dependents:
            del self._dependents[owner]
        known = self._items.get(owner)
        if known is not None and known.foreground:
            self.owners.add(owner)

    # -- dependents ----------------------------------------------------------------------------------------------
    async def _look_at_dependent(self, uid: str) -> float | None:
        item, obj = self._find(uid)
        if item is None or obj is None:
            return None
        alive: set[str] = set()
        waiting: set[str] = set()
        gone: set[str] = set()
        for reference in obj["metadata"].get("ownerReferences") or ():
            kind = self._registry.kinds.of(reference["apiVersion"], reference["kind"])
            if kind is None:
                return _UNKNOWN_KIND_S
            if kind.info.namespaced and not item.namespace:
                self._report(item, obj, reference)
                return None
            state = self._state(reference, kind.info, item.namespace)
            if state == "gone" and reference["uid"] in self._items:
                self._report(item, obj, reference)
            {"alive": alive, "waiting": waiting, "gone": gone}[state].add(reference["uid"])
        verdict = judge(alive, waiting, gone, has_dependents=bool(self._dependents.get(uid)))
        if verdict.delete and not is_terminating(obj):
            if verdict.delete == "Foreground" and self._is_in_circle(uid):
                await self._unblock(item, obj)
            await self._delete(item, uid, verdict.delete)
        elif verdict.drop:
            await self._drop(item, obj, set(verdict.drop))
        return None

    def _state(self, reference: Object, kind: ResourceInfo, namespace: str) -> str:
        """Return alive, waiting or gone. An owner is all that its reference says, in the dependent's namespace."""
        owner = self._items.get(reference["uid"])
        if owner is None or owner.name != reference["name"] or owner.info.qualified != kind.qualified:
            return "gone"
        if owner.namespace and owner.namespace != namespace:
            return "gone"
        return "waiting" if owner.foreground else "alive"

    def _report(self, item: Item, obj: Object, reference: Object) -> None:
        """Say of an object that an owner is where none can be."""
        coordinates = f"{reference['apiVersion']}/{reference['kind']}, namespace: {item.namespace}"
        owner = f"[{coordinates}, name: {reference['name']}, uid: {reference['uid']}]"
        text = f'ownerRef {owner} does not exist in namespace "{item.namespace}"'
        self._recorder.record(obj, item.info.kind, "OwnerRefInvalidNamespace", text, "Warning")

    def _is_in_circle(self, uid: str) -> bool:
        """Return whether a dependent of an object waits for its dependents itself."""
        found = (self._items.get(dependent) for dependent in self._dependents.get(uid, ()))
        return any(item is not None and item.foreground for item in found)

    async def _unblock(self, item: Item, obj: Object) -> None:
        meta = obj["metadata"]
        references = [{**reference, "blockOwnerDeletion": False} for reference in meta["ownerReferences"]]
        patch = {"metadata": {"uid": meta["uid"], "ownerReferences": references}}
        await self._tolerant(self._registry.patch(item.info, item.namespace, item.name, patch, "merge"))

    async def _delete(self, item: Item, uid: str, propagation: str) -> None:
        await self._tolerant(
            self._registry.delete(
                item.info, item.namespace, item.name, propagation=propagation, preconditions={"uid": uid}
            )
        )

    async def _drop(self, item: Item, obj: Object, owners: set[str]) -> None:
        """Takes references to owners out of an object."""
        meta = obj["metadata"]
        left = [r for r in meta.get("ownerReferences") or () if r["uid"] not in owners]
        patch = {"metadata": {"uid": meta["uid"], "ownerReferences": left or None}}
        await self._tolerant(self._registry.patch(item.info, item.namespace, item.name, patch, "merge"))

    # -- owners that wait ----------------------------------------------------------------------------------------
    async def _look_at_owner(self, uid: str) -> float | None:
        item, obj = self._find(uid)
        if item is None or obj is None or not is_terminating(obj):
            return None
        finalizers = obj["metadata"].get("finalizers") or ()
        if ORPHAN in finalizers:
            for dependent in list(self._dependents.get(uid, ())):
                other, body = self._find(dependent)
                if other is not None and body is not None:
                    await self._drop(other, body, {uid})
            await self._remove_finalizer(item, ORPHAN)
        elif FOREGROUND in finalizers:
            blocking = False
            for dependent in list(self._dependents.get(uid, ())):
                self.dependents.add(dependent)
                _, body = self._find(dependent)
                blocking = blocking or (body is not None and dependent != uid and _blocks(body, uid))
            if not blocking:
                await self._remove_finalizer(item, FOREGROUND)
        return None

    async def _remove_finalizer(self, item: Item, finalizer: str) -> None:
        obj = self._registry.get(item.info, item.namespace, item.name)
        if obj is None:
            return
        left = [f for f in obj["metadata"].get("finalizers") or () if f != finalizer]
        body = {**obj, "metadata": {**obj["metadata"], "finalizers": left}}
        await self._tolerant(self._registry.update(item.info, item.namespace, item.name, body))

    # -- helpers -------------------------------------------------------------------------------------------------
    def _find(self, uid: str) -> tuple[Item | None, Object | None]:
        item = self._items.get(uid)
        if item is None:
            return None, None
        try:
            obj = self._registry.get(item.info, item.namespace, item.name)
        except Terminal:  # its CRD went, and the object with it
            self._items.pop(uid, None)
            return None, None
        if obj is None or obj["metadata"].get("uid") != uid:
            return None, None
        return item, obj

    @staticmethod
    async def _tolerant(write: Any) -> None:
        """An object that is gone already needs no more looking after; a conflict is tried again by the worker."""
        try:
            await write
        except ApiFailure as error:
            if error.status != 404:
                raise


def _blocks(dependent: Object, owner: str) -> bool:
    references = dependent["metadata"].get("ownerReferences") or ()
    return any(r["uid"] == owner and r.get("blockOwnerDeletion") for r in references)


def _may_own(owner: Item, reference: Object, meta: Object) -> bool:
    """Return whether an item is what a reference says, in a scope where it may own an object of this metadata."""
    is_it = (owner.name, owner.info.kind) == (reference["name"], reference["kind"])
    return is_it and owner.namespace in ("", meta.get("namespace"))
