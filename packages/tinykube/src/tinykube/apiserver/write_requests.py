"""The requests that write: POST, PUT, PATCH and DELETE of objects, and their options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tinykube.apiserver import failure
from tinykube.apiserver.asgi import HttpRequest, HttpResponse
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import ApiFailure, Cause, bad_request
from tinykube.apiserver.hooks import Attributes
from tinykube.apiserver.kinds import Kind
from tinykube.apiserver.lifecycle import check_identity
from tinykube.apiserver.negotiation import PATCH_TYPES, View, media_type, parse, parse_object
from tinykube.apiserver.reading import ObjectReader
from tinykube.apiserver.registry import Registry
from tinykube.apiserver.store import StoreEntry
from tinykube.apiserver.writes import Delete, WriteOptions

Object = dict[str, Any]

_VERSION = "metadata.resourceVersion"
#: Built-in kinds that are replaced only by who says which version is replaced, as all custom ones.
_CONDITIONAL = frozenset(
    (
        "csidrivers",
        "leases",
        "flowschemas",
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
        "mutatingwebhookconfigurations",
        "poddisruptionbudgets",
        "prioritylevelconfigurations",
        "runtimeclasses",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
        "validatingwebhookconfigurations",
    )
)
_MANAGER_BYTES = 128
_OPTIONS = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions", "DELETE": "DeleteOptions"}
_encode = msgspec.json.Encoder().encode


class WriteRequests:
    """Answers requests that write. `authorize` raises ApiFailure for what the user of a request may not do."""

    def __init__(
        self, registry: Registry, reader: ObjectReader, authorize: Callable[[HttpRequest, Attributes], None]
    ) -> None:
        self._registry = registry
        self._reader = reader
        self._authorize = authorize

    def options(self, request: HttpRequest, operation: str = "Update") -> WriteOptions:
        query = request.query
        dry_run = query.get("dryRun", "")
        if dry_run not in ("", "All"):
            cause = Cause(
                "FieldValueNotSupported", f'Unsupported value: ["{dry_run}"]: supported values: "All"', "dryRun"
            )
            raise failure.invalid_options(_OPTIONS.get(request.method, "CreateOptions"), cause)
        validation = query.get("fieldValidation") or "Warn"
        if validation not in ("Ignore", "Warn", "Strict"):
            cause = failure.not_supported("fieldValidation", validation, ("", "Ignore", "Strict", "Warn"))
            raise failure.invalid_options(_OPTIONS.get(request.method, "CreateOptions"), cause)
        manager = query.get("fieldManager") or ""
        if len(manager) > _MANAGER_BYTES:
            cause = Cause("FieldValueTooLong", f"Too long: may not be more than {_MANAGER_BYTES} bytes", "fieldManager")
            raise failure.invalid_options(_OPTIONS.get(request.method, "CreateOptions"), cause)
        if "force" in query and request.method == "PATCH" and operation != "Apply":
            cause = Cause("FieldValueForbidden", "Forbidden: may not be specified for non-apply patch", "force")
            raise failure.invalid_options("PatchOptions", cause)
        if not manager and operation == "Update":
            manager = request.header(b"user-agent").partition("/")[0].strip()[:128] or "unknown"
        return WriteOptions(
            user=request.user,
            manager=manager,
            operation=operation,
            dry_run=bool(dry_run),
            validation=validation,
            warnings=request.warnings,
        )

    async def create(self, request: HttpRequest, kind: Kind, namespace: str) -> HttpResponse:
        if kind.info.namespaced and not namespace:
            raise bad_request("an empty namespace may not be set during creation")
        view, write = View(request), self.options(request)
        obj = parse_object(request, await request.body())
        write = _strict(write, request)
        _check_custom(kind.info, obj)
        if isinstance(metadata := obj.get("metadata"), dict) and metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        entry = await self._registry.writer.create(kind, namespace, obj, write)
        return view.respond(view.one(kind, entry), 201)

    async def update(
        self, request: HttpRequest, kind: Kind, namespace: str, name: str, subresource: str
    ) -> HttpResponse:
        view, write = View(request), self.options(request)
        obj = parse_object(request, await request.body())
        write = _strict(write, request)
        _check_custom(kind.info, obj)
        check_identity(kind.info, namespace, name, obj)  # before anything is looked up
        conditional = not kind.info.model or kind.info.plural in _CONDITIONAL
        if conditional and not subresource and not obj["metadata"].get("resourceVersion"):
            cause = Cause("FieldValueInvalid", "Invalid value: 0: must be specified for an update", _VERSION)
            raise failure.invalid(kind.info, name, (cause,), kind=kind.info.plural)
        entry = await self._registry.writer.update(kind, namespace, name, lambda _: obj, subresource, write)
        return view.respond(view.one(kind, entry))

    async def patch(
        self, request: HttpRequest, kind: Kind, namespace: str, name: str, subresource: str
    ) -> HttpResponse:
        type = PATCH_TYPES.get(media_type(request))
        if type is None:
            raise ApiFailure(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
        view = View(request)
        write = self.options(request, "Apply" if type == "apply" else "Update")
        patch = parse(request, await request.body())
        write = _strict(write, request, patch=type != "apply")
        existed = type != "apply" or kind.table.get(namespace, name) is not None
        if not existed:
            info = kind.info
            creation = Attributes("create", info.group, info.version, info.plural, subresource, namespace, name)
            self._authorize(request, creation)
        entry = await self._registry.writer.patch(
            kind, namespace, name, patch, type, subresource, write, force=request.query.get("force") == "true"
        )
        return view.respond(view.one(kind, entry), 200 if existed else 201)

    async def _delete_options(self, request: HttpRequest) -> tuple[Delete, WriteOptions]:
        """From the query and the body; the body wins."""
        write, query = self.options(request), request.query
        options: Object = {}
        data = await request.body()
        if data:
            found = parse(request, data)
            options = found if isinstance(found, dict) else {}
        grace = options.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        propagation = options.get("propagationPolicy") or query.get("propagationPolicy")
        if propagation and options.get("orphanDependents") is not None:
            text = f'Invalid value: "{propagation}": orphanDependents and deletionPropagation cannot be both set'
            raise failure.invalid_options("DeleteOptions", Cause("FieldValueInvalid", text, "propagationPolicy"))
        if propagation is None and options.get("orphanDependents") is not None:
            propagation = "Orphan" if options["orphanDependents"] else "Background"
        wanted = options.get("preconditions") or {}
        if options.get("dryRun"):
            write = msgspec.structs.replace(write, dry_run=True)
        delete = Delete(
            None if grace is None else int(grace), propagation, wanted.get("uid"), wanted.get("resourceVersion")
        )
        return delete, write

    async def delete(self, request: HttpRequest, kind: Kind, namespace: str, name: str) -> HttpResponse:
        view = View(request)
        options, write = await self._delete_options(request)
        if options.propagation is None and (kind.info.group, kind.info.plural) == ("batch", "jobs"):
            # The default of 1.36: Jobs are older than garbage collection.
            options = msgspec.structs.replace(options, propagation="Orphan")
            request.warnings.append(
                "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove "
                "them or set propagationPolicy=Orphan to suppress this warning"
            )
        entry, removed = await self._registry.deleter.delete(kind, namespace, name, options, write)
        if removed and kind.info.plural != "pods":
            return view.respond(_encode(_success(kind.info, entry)))
        return view.respond(view.one(kind, kind.show(entry)))

    async def delete_collection(self, request: HttpRequest, kind: Kind, namespace: str) -> HttpResponse:
        view = View(request)
        options, write = await self._delete_options(request)
        selection = self._reader.selection(request, kind, namespace)
        deleted: list[StoreEntry] = []
        for entry in kind.table.select(selection):
            try:
                last, _ = await self._registry.deleter.delete(kind, entry.namespace, entry.name, options, write)
            except ApiFailure as error:
                if error.status != 404:  # another request was faster
                    raise
                continue
            deleted.append(kind.show(last))
        metadata = {"resourceVersion": str(self._registry.store.version)}
        return view.respond(view.many(kind, deleted, metadata))


def _strict(write: WriteOptions, request: HttpRequest, *, patch: bool = False) -> WriteOptions:
    """Return the options of a write whose body is parsed."""
    if request.repeated is None and not patch:
        return write
    return msgspec.structs.replace(write, repeated=request.repeated, patch=patch)


def _check_custom(info: ResourceInfo, obj: Object) -> None:
    """Built-in kinds are known by their URL; objects of others say what they are."""
    if not info.model and not obj.get("apiVersion"):
        raise bad_request(
            f"the API version in the data () does not match the expected API version ({info.api_version})"
        )


def _success(info: ResourceInfo, entry: StoreEntry) -> Object:
    details: Object = {"name": entry.name, "kind": info.plural, "uid": entry.obj["metadata"]["uid"]}
    if info.group:
        details["group"] = info.group
    return {**done(), "details": details}


def done() -> Object:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
