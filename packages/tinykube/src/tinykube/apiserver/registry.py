"""The API server without HTTP: what the REST paths, the controllers, the scheduler and light nodes all write through.

One chain for every write: identity, what this kind of write may change, unknown fields, defaults, admission,
validation, field managers, the store. It awaits only where admission does, so that without webhooks a write is one step
of the event loop; when it did await and the object has changed meanwhile, the chain starts again on the new version.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from tinykube.apiserver import apply as book
from tinykube.apiserver import failure, lifecycle
from tinykube.apiserver.addresses import DEFAULT_RANGE, ServiceRange
from tinykube.apiserver.admitting import admitted, scale_admitted
from tinykube.apiserver.autoscaler_forms import first_version_printer, first_version_rules, from_second, to_second
from tinykube.apiserver.builtin import RESOURCES, ResourceInfo
from tinykube.apiserver.eventforms import from_core, to_core
from tinykube.apiserver.fieldset import Object
from tinykube.apiserver.hooks import SYSTEM, AdmissionRequest, Hooks, KindRules, User
from tinykube.apiserver.kinds import Convert, Kind, Kinds, Named
from tinykube.apiserver.patch import json_patch, merge_patch, strategic_patch
from tinykube.apiserver.printers import Printer
from tinykube.apiserver.rules import builtin_rules
from tinykube.apiserver.selectors import parse_fields, parse_labels
from tinykube.apiserver.store import Journal, ObjectStore, Selection, StoreEntry, Subscriber
from tinykube.apiserver.strictness import strict_findings
from tinykube.apiserver.structural import of_status_alone
from tinykube.apiserver.tables import printer_for
from tinykube.apiserver.typed import prune_metadata
from tinykube.apiserver.typed_apply import check_applied, with_empty
from tinykube.apiserver.validation import VALIDATE_BY_SUBRESOURCE, validate_metadata
from tinykube.apiserver.writes import BY_SYSTEM, Delete, WriteOptions

_ATTEMPTS = 8  # of one write whose object changed while admission was asked
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # of generated names, as Kubernetes chooses them: no vowels, no lookalikes
_MAX_GENERATED = 58
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")  # the first three stay for ever

Change = Callable[[Object], Object]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
T = TypeVar("T")


def copy(obj: T) -> T:
    """A deep copy of plain data; encoding and decoding is four times faster than copying in Python."""
    copied: T = _decode(_encode(obj))
    return copied


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
        self.store = ObjectStore()
        self.kinds = Kinds(self.store)
        self._clock = clock
        self._second = -1
        self._now = ""
        services = self.store.table("services")
        for info in RESOURCES:
            rules = builtin_rules(info, services, service_range)
            if info.group == "events.k8s.io":
                self.kinds.add(info, rules, table="events", outward=from_core, inward=to_core)
            elif info.api_version == "autoscaling/v1":
                rules, printer = first_version_rules(rules), first_version_printer(printer_for(info.group, info.plural))
                self.kinds.add(info, rules, outward=from_second, inward=to_second, printer=printer)
            else:
                self.kinds.add(info, rules)
        self._namespaces = self.kinds.find("namespaces").table
        self._definitions = self.kinds.find("customresourcedefinitions").table
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
        return self.later(0)

    def later(self, seconds: int) -> str:
        second = int(self._clock()) + seconds
        if second != self._second:
            self._second = second
            self._now = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return self._now

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
        return (await self.create_entry(kind, namespace or "", copy(obj), write)).obj

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
        given = copy(obj)
        entry = await self.update_entry(kind, namespace or "", name, lambda _: given, subresource or "", write)
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
        entry = await self.patch_entry(kind, namespace or "", name, patch, type, subresource or "", write, force=force)
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
        entry, _ = await self.delete_entry(kind, namespace or "", name, options, WriteOptions(user=user))
        return entry.obj

    # -- the chain -------------------------------------------------------------------------------------------
    async def create_entry(self, kind: Kind, namespace: str, obj: Object, write: WriteOptions) -> StoreEntry:
        """Create; the chain owns `obj`."""
        info, rules = kind.info, kind.rules
        lifecycle.check_identity(info, namespace, "", obj)
        metadata = obj["metadata"]
        name = metadata.get("name")
        prefix = metadata.get("generateName")
        generated = not name and isinstance(prefix, str) and bool(prefix)
        if generated:
            name = metadata["name"] = self._generate(kind, namespace, prefix)
        if info.namespaced:
            self._check_namespace(info, namespace, name or "")
        self._check_definition(kind, name or "")
        lifecycle.prepare_create(info, obj, uid=str(uuid.uuid4()), now=self.now())
        self._prune(info, rules, obj, None, write)
        rules.default(obj)
        obj = await self._admit("CREATE", kind, namespace, name or "", "", obj, None, write)
        rules.complete(obj, None)
        causes = (*validate_metadata(info, obj, None), *rules.validate(obj, None))
        if causes:
            raise failure.invalid(info, name or "", causes)
        name = obj["metadata"]["name"]
        if kind.table.get(namespace, name) is not None:
            raise failure.already_exists(info, name)
        if write.manager and write.operation == "Update":
            obj["metadata"].pop("managedFields", None)
            manager = book.Manager(write.manager, "Update", info.api_version)
            book.record(None, obj, rules.schema, manager, self.now())
        return self._put(kind, namespace, name, obj, write)

    def _generate(self, kind: Kind, namespace: str, prefix: str) -> str:
        base = prefix[:_MAX_GENERATED]
        while True:
            name = base + "".join(secrets.choice(_SUFFIX) for _ in range(5))
            if kind.table.get(namespace, name) is None:
                return name

    def _check_namespace(self, info: ResourceInfo, namespace: str, name: str) -> None:
        found = self._namespaces.get("", namespace)
        if found is None:
            raise failure.not_found(self.kinds.find("namespaces").info, namespace)
        if "deletionTimestamp" in found.obj["metadata"] and info.plural != "events":
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            what = f"namespace {namespace} is being terminated"
            cause = failure.Cause("NamespaceTerminating", what, "metadata.namespace")
            raise failure.forbidden(info, name, why, (cause,))

    async def update_entry(
        self, kind: Kind, namespace: str, name: str, change: Change, subresource: str, write: WriteOptions
    ) -> StoreEntry:
        """Replace an object by `change(object)`, which must not alter its argument and may be called again."""
        info, rules = kind.info, kind.rules
        for _ in range(_ATTEMPTS):
            entry = kind.table.get(namespace, name)
            if entry is None:
                raise failure.not_found(info, name)
            old = kind.show(entry).obj
            given = change(old)
            lifecycle.check_identity(info, namespace, name, given)
            metadata = given["metadata"]
            version = metadata.get("resourceVersion")
            if version and version != old["metadata"]["resourceVersion"]:
                raise failure.conflict(info, name)
            if write.patch and metadata.get("uid") not in (None, "", old["metadata"]["uid"]):
                cause = failure.invalid_value("metadata.uid", metadata["uid"], "field is immutable")
                raise failure.invalid(info, name, (cause, cause))  # twice, as a real server finds it
            if metadata.get("uid"):
                lifecycle.check_uid(info, old, metadata["uid"])
            new = copy(lifecycle.prepare_update(info, old, given, subresource))
            self._prune(info, rules, new, old, write)
            rules.default(new)
            if subresource != "binding":  # admitted as what it is, before it came here
                new = await self._admit("UPDATE", kind, namespace, name, subresource, new, old, write)
            if "generation" in old["metadata"] and lifecycle.wanted(info, old) == lifecycle.wanted(info, new):
                # What a client writes in its own spelling (a quantity 1 for "1") is no change once it is canonical.
                new["metadata"]["generation"] = old["metadata"]["generation"]
            lifecycle.check_finalizers(info, old, new)
            rules.complete(new, old)
            validate = VALIDATE_BY_SUBRESOURCE.get(subresource, rules.validate)
            causes = (*validate_metadata(info, new, old), *validate(new, old))
            if causes:
                of_status = not info.model and subresource == "status"
                raise failure.invalid(info, name, of_status_alone(causes) if of_status else causes)
            if kind.table.get(namespace, name) is not entry:
                continue
            if write.manager and write.operation == "Update":
                manager = book.Manager(write.manager, "Update", info.api_version, subresource)
                book.record(old, new, rules.schema, manager, self.now())
            new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
            if lifecycle.unchanged(old, new):
                return kind.show(entry)
            if lifecycle.finished(info, new) and not write.dry_run:
                return kind.show(kind.table.remove(entry, kind.stored(new)))
            return self._put(kind, namespace, name, new, write)
        raise failure.conflict(info, name)

    async def patch_entry(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        patch: Any,
        type: str,
        subresource: str,
        write: WriteOptions,
        *,
        force: bool = False,
    ) -> StoreEntry:
        info, schema = kind.info, kind.rules.schema
        if type == "apply":
            return await self._apply(kind, namespace, name, patch, subresource, write, force=force)
        if type == "json":
            return await self.update_entry(
                kind, namespace, name, lambda old: _json_patched(info, old, patch), subresource, write
            )
        if not isinstance(patch, dict):
            what = "json: cannot unmarshal array into Go value of type map[string]interface {}"
            raise failure.bad_request(f"error decoding patch: {what}")
        if type == "merge":
            return await self.update_entry(
                kind, namespace, name, lambda old: _own_metadata(merge_patch(old, patch)), subresource, write
            )
        if type != "strategic" or not info.model:
            raise failure.ApiFailure(
                415,
                "UnsupportedMediaType",
                "the body of the request was in an unknown format - accepted media types include: "
                "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            )
        return await self.update_entry(
            kind, namespace, name, lambda old: _own_metadata(strategic_patch(old, patch, schema)), subresource, write
        )

    async def _apply(
        self, kind: Kind, namespace: str, name: str, config: Any, subresource: str, write: WriteOptions, *, force: bool
    ) -> StoreEntry:
        info = kind.info
        manager = self.manager(kind, subresource, write)
        self._check_repeated(write)
        if not isinstance(config, dict):
            raise failure.bad_request("error decoding YAML: the document is no object")
        if "apiVersion" not in config or "kind" not in config:
            group, _, version = str(config.get("apiVersion", "")).rpartition("/")
            raise failure.bad_request(f"invalid object type: {group}/{version}, Kind={config.get('kind', '')}")
        body = config.get("metadata")
        given = body.get("namespace", "") if isinstance(body, dict) else ""
        lifecycle.check_identity(info, namespace, name, config)
        if config["metadata"].get("managedFields"):
            raise failure.bad_request("metadata.managedFields must be nil")
        config = lifecycle.applied_part(info, config, subresource)
        config = self._typed(kind, config, given)

        def change(live: Object) -> Object:
            current = live["metadata"].get("resourceVersion")
            if config["metadata"].get("resourceVersion", current) != current:
                raise failure.conflict(info, name)  # before any conflict of fields
            new = book.apply(live, config, kind.rules.schema, manager, force=force, now=self.now())
            for field in ("uid", "resourceVersion"):
                if config["metadata"].get(field):
                    new["metadata"][field] = config["metadata"][field]
            return new

        if kind.table.get(namespace, name) is None and not subresource:
            empty: Object = {"apiVersion": info.api_version, "kind": info.kind, "metadata": {}}
            obj = copy(change(empty))
            obj["metadata"].update(name=name, **({"namespace": namespace} if info.namespaced else {}))
            return await self.create_entry(kind, namespace, obj, write)
        return await self.update_entry(kind, namespace, name, change, subresource, write)

    @staticmethod
    def manager(kind: Kind, subresource: str, write: WriteOptions) -> book.Manager:
        """The manager of an apply. Raises ApiFailure 422 where the request names none."""
        if not write.manager:
            cause = failure.required("fieldManager", "is required for apply patch")
            raise failure.invalid_options("PatchOptions", cause)
        return book.Manager(write.manager, "Apply", kind.info.api_version, subresource)

    @staticmethod
    def _check_repeated(write: WriteOptions) -> None:
        if write.repeated is None or write.validation == "Ignore":
            return
        # NB: what is applied is read as YAML, also where it is JSON.
        (message,) = strict_findings((), write.repeated, custom=True)
        if write.validation == "Strict":
            raise failure.bad_request(f"error strict decoding YAML: error converting YAML to JSON: {message}")
        write.warnings.append(f"error converting YAML to JSON: {message}")

    @staticmethod
    def _typed(kind: Kind, config: Object, namespace: str) -> Object:
        """Return an applied configuration in the types of its kind. Empty maps and lists stay: they are owned."""
        typed = copy(config)
        unknown = [] if kind.info.model else prune_metadata(typed, None, kind.info.kind)
        unknown += kind.rules.prune(typed, None)
        check_applied(config, namespace, unknown, kind.rules.schema)
        return with_empty(typed, config)

    async def delete_entry(
        self, kind: Kind, namespace: str, name: str, options: Delete, write: WriteOptions
    ) -> tuple[StoreEntry, bool]:
        """The last version and whether the object is gone already."""
        info = kind.info
        for _ in range(_ATTEMPTS):
            entry = kind.table.get(namespace, name)
            if entry is None:
                raise failure.not_found(info, name)
            lifecycle.check_preconditions(info, entry.obj, uid=options.uid, version=options.version)
            if kind.table is self._namespaces and name in NAMESPACES[:3]:
                raise failure.forbidden(info, name, "this namespace may not be deleted")
            await self._admit("DELETE", kind, namespace, name, "", None, entry.obj, write)
            if kind.table.get(namespace, name) is not entry:
                continue
            grace = lifecycle.grace_seconds(info, entry.obj, options.grace)
            decision = lifecycle.decide_deletion(
                info,
                self._held(kind, entry.obj),
                grace=options.grace,
                propagation=options.propagation,
                at=self.later(grace),
            )
            if write.dry_run:
                return entry, decision.remove
            if decision.remove:
                last = lifecycle.last_version(info, entry.obj, self.now())
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
        if not self.kinds.serves(resource):
            return obj
        objects = self.kinds.find(resource).table.items.values()
        if not any(entry.obj["metadata"].get("finalizers") for entry in objects):
            return obj
        finalizers = [*(obj["metadata"].get("finalizers") or ()), lifecycle.CLEANUP]
        return {**obj, "metadata": {**obj["metadata"], "finalizers": finalizers}}

    def _check_definition(self, kind: Kind, name: str) -> None:
        """A definition that goes gets no new objects."""
        found = None if kind.info.model else self._definitions.get("", f"{kind.info.plural}.{kind.info.group}")
        if found is not None and "deletionTimestamp" in found.obj["metadata"]:
            what = "create not allowed while custom resource definition is terminating"
            raise failure.forbidden(kind.info, name, what)

    def _put(self, kind: Kind, namespace: str, name: str, obj: Object, write: WriteOptions) -> StoreEntry:
        if write.dry_run:
            return StoreEntry(namespace, name, f"{namespace}/{name}", obj, self.store.version)
        return kind.show(kind.table.put(namespace, name, kind.stored(obj)))

    @staticmethod
    def _prune(info: ResourceInfo, rules: KindRules, obj: Object, old: Object | None, write: WriteOptions) -> None:
        if info.model and not write.validation:
            return
        try:
            unknown = prune_metadata(obj, old, info.kind) if not info.model and write.validation else []
            unknown += rules.prune(obj, old)
        except failure.ApiFailure as error:
            raise failure.invalid_patch(obj, error.message) if write.patch else error from None
        if write.validation in ("", "Ignore"):
            return
        messages = strict_findings(unknown, write.repeated, custom=not info.model)
        if messages and write.validation == "Strict":
            text = f"strict decoding error: {', '.join(messages)}"
            if write.patch:
                raise failure.invalid_patch(obj, text)
            what = f'{info.kind} in version "{info.version}" cannot be handled as a {info.kind}'
            raise failure.bad_request(f"{what}: {text}")
        write.warnings.extend(messages)

    async def _admit(
        self,
        operation: str,
        kind: Kind,
        namespace: str,
        name: str,
        subresource: str,
        obj: Object | None,
        old: Object | None,
        write: WriteOptions,
    ) -> Object:
        request = AdmissionRequest(
            operation, kind.info, subresource, namespace, name, obj, old, write.user, write.dry_run, {}, write.warnings
        )
        if subresource == "scale":
            return await scale_admitted(self.hooks.admission, kind, request)

        def completed(changed: Object) -> None:
            if not kind.info.model:
                kind.rules.prune(changed, None)  # a webhook may have added what the schema does not know
            kind.rules.default(changed)

        return await admitted(self.hooks.admission, request, completed)


def _json_patched(info: ResourceInfo, old: Object, patch: Any) -> Any:
    """The patched object. NB: a status is there for a patch, also where nothing has written one yet."""
    if not info.model or "status" not in info.subresources or "status" in old:
        return json_patch(old, patch)
    new = json_patch({**old, "status": {}}, patch)
    return {name: value for name, value in new.items() if name != "status" or value} if isinstance(new, dict) else new


def _own_metadata(obj: Any) -> Object:
    """Check the result of a patch as far as the chain relies on it."""
    if not isinstance(obj, dict):
        raise failure.bad_request("the patch does not leave an object")
    return obj
