"""Deletes objects, or marks for deletion those that finalizers or a kubelet hold."""

from __future__ import annotations

from tinykube.apiserver import failure, lifecycle
from tinykube.apiserver.fieldset import Object
from tinykube.apiserver.kinds import Kind, Kinds
from tinykube.apiserver.store import StoreEntry
from tinykube.apiserver.writes import Delete, WriteOptions
from tinykube.apiserver.writing import ATTEMPTS, ObjectWriter

LASTING = ("default", "kube-system", "kube-public")  # namespaces that stay for ever


class ObjectDeleter:
    """Deletes by the admission and the time of a writer."""

    def __init__(self, kinds: Kinds, writer: ObjectWriter) -> None:
        self._kinds = kinds
        self._writer = writer
        self._namespaces = kinds.find("namespaces").table
        self._definitions = kinds.find("customresourcedefinitions").table

    async def delete(
        self, kind: Kind, namespace: str, name: str, options: Delete, write: WriteOptions
    ) -> tuple[StoreEntry, bool]:
        """The last version and whether the object is gone already."""
        info = kind.info
        for _ in range(ATTEMPTS):
            entry = kind.table.get(namespace, name)
            if entry is None:
                raise failure.not_found(info, name)
            lifecycle.check_preconditions(info, entry.obj, uid=options.uid, version=options.version)
            if kind.table is self._namespaces and name in LASTING:
                raise failure.forbidden(info, name, "this namespace may not be deleted")
            await self._writer.admit("DELETE", kind, namespace, name, "", None, entry.obj, write)
            if kind.table.get(namespace, name) is not entry:
                continue
            grace = lifecycle.grace_seconds(info, entry.obj, options.grace)
            decision = lifecycle.decide_deletion(
                info,
                self._held(kind, entry.obj),
                grace=options.grace,
                propagation=options.propagation,
                at=self._writer.time.later(grace),
            )
            if write.dry_run:
                return entry, decision.remove
            if decision.remove:
                last = lifecycle.last_version(info, entry.obj, self._writer.time.now())
                return kind.table.remove(entry) if last is None else kind.table.remove(entry, last), True
            if decision.marked is None:
                return entry, False
            return kind.table.put(namespace, name, decision.marked), False
        raise failure.conflict(info, name)

    def _held(self, kind: Kind, obj: Object) -> Object:
        """Return a definition with the finalizer that holds it, where one of its objects may have to wait."""
        if kind.table is not self._definitions or "deletionTimestamp" in obj["metadata"]:
            return obj
        resource = (obj["spec"]["group"], obj["spec"]["names"]["plural"])
        if not self._kinds.serves(resource):
            return obj
        objects = self._kinds.find(resource).table.items.values()
        if not any(entry.obj["metadata"].get("finalizers") for entry in objects):
            return obj
        finalizers = [*(obj["metadata"].get("finalizers") or ()), lifecycle.CLEANUP]
        return {**obj, "metadata": {**obj["metadata"], "finalizers": finalizers}}
