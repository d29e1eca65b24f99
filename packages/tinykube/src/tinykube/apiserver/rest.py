"""The REST face of the registry: one ASGI application for everything below /api and /apis, and for the other pages.

Each request is authenticated, its path taken apart, authorized, and handed to the function for its verb. Functions give
a `HttpResponse`, or None when they have spoken to the client themselves (watches, streams). Every refusal is an
`ApiFailure`, and only here it becomes a Status object.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from kubekit.kube.exposition import CONTENT_TYPE, exposition
from tinykube.apiserver import failure
from tinykube.apiserver.admitting import admitted
from tinykube.apiserver.asgi import BodyTooLarge, HttpRequest, HttpResponse, Receive, Scope, Send, json_response
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.discovery import CONNECT_KINDS
from tinykube.apiserver.failure import ApiFailure, Cause, bad_request
from tinykube.apiserver.hooks import SYSTEM, AdmissionRequest, Attributes, ImpersonationRefused, User
from tinykube.apiserver.kinds import Kind
from tinykube.apiserver.lifecycle import check_identity
from tinykube.apiserver.metrics import Requests
from tinykube.apiserver.negotiation import (
    PATCH_TYPES,
    View,
    media_type,
    not_acceptable,
    parse,
    parse_object,
    warning_headers,
)
from tinykube.apiserver.patch import json_patch, merge_patch
from tinykube.apiserver.rbac import denial
from tinykube.apiserver.reading import ObjectReader
from tinykube.apiserver.registry import Registry
from tinykube.apiserver.scales import scale_of, with_applied_scale, with_scale
from tinykube.apiserver.store import StoreEntry
from tinykube.apiserver.subresources import bind, evict
from tinykube.apiserver.writes import Delete, WriteOptions

Object = dict[str, Any]
log = logging.getLogger("tinykube.apiserver")

_STORED = frozenset(("status", "finalize", "ephemeralcontainers", "resize", "approval"))
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


class Target(msgspec.Struct, frozen=True):
    """The object or list that a path names."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse_path(parts: list[str]) -> Target | None:
    """The resource that a path names, None for a path that names none."""
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if rest[0] == "namespaces" and not namespace and name:
        namespace = name  # access to a namespace is granted inside it as well
    return Target(group, version, rest[0], namespace, name, subresource)


def _attributes(verb: str, target: Target, name: str, selected_node: str = "") -> Attributes:
    return Attributes(
        verb=verb,
        group=target.group,
        version=target.version,
        resource=target.plural,
        subresource=target.subresource,
        namespace=target.namespace,
        name=name,
        selected_node=selected_node,
    )


class Rest:
    """The ASGI application. `close` ends the open watches."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.reader = ObjectReader(registry)
        self.requests = Requests()

    def close(self) -> None:
        self.reader.watches.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return
        request = HttpRequest(scope, receive, send)
        try:
            response = await self._respond(request)
        except ApiFailure as error:
            response = _failed(error)
        except BodyTooLarge:
            response = _failed(ApiFailure(413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728"))
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            response = _failed(ApiFailure(500, "InternalError", "Internal error occurred; see the API server's log"))
        if response is not None:
            if request.warnings:
                response.headers += warning_headers(request.warnings)
            await response.send(send)

    # -- from request to verb --------------------------------------------------------------------------------
    async def _respond(self, request: HttpRequest) -> HttpResponse | None:
        hooks = self.registry.hooks
        target = parse_path(request.parts)
        try:
            request.user = SYSTEM if hooks.authenticator is None else hooks.authenticator.authenticate(request)
        except ImpersonationRefused as refused:
            raise _not_impersonated(request, target, refused.caller) from None
        if target is None:
            self._authorize(request, Attributes(verb=request.method.lower(), path=request.path))
            return await self._page(request)
        kind = self.registry.kinds.served(target.group, target.version, target.plural)
        if kind is None:
            self._authorize(request, _attributes(_verb(request, target), target, target.name))
            if self.registry.kinds.serves_group(target.group):
                raise failure.no_such_resource()
            return await self._page(request)
        verb = _verb(request, target)
        name = target.name
        if not name and verb in ("list", "watch", "deletecollection"):
            # A user who may read one object may list it alone.
            name = _selected(request.query.get("fieldSelector", ""), "metadata.name")
        selected_node = _selected(request.query.get("fieldSelector", ""), "spec.nodeName")
        self._authorize(request, _attributes(verb, target, name, selected_node))
        namespace = target.namespace if kind.info.namespaced else ""
        if kind.info.namespaced and target.name and not namespace:
            raise failure.no_such_resource()
        if target.subresource:
            return await self._subresource(request, kind, namespace, target.name, target.subresource, verb)
        if kind.info.virtual:
            return await self._virtual(request, kind, namespace)
        if verb == "get":
            return self.reader.get(request, kind, namespace, target.name)
        if verb in ("list", "watch"):
            return await self.reader.list(request, kind, namespace, target.name)
        if verb == "create":
            return await self._create(request, kind, namespace)
        if verb == "update":
            return await self._update(request, kind, namespace, target.name, "")
        if verb == "patch":
            return await self._patch(request, kind, namespace, target.name, "")
        if verb == "delete":
            return await self._delete(request, kind, namespace, target.name)
        return await self._delete_collection(request, kind, namespace)

    def _authorize(self, request: HttpRequest, attributes: Attributes) -> None:
        authorizer = self.registry.hooks.authorizer
        refusal = None if authorizer is None else authorizer.authorize(request.user, attributes)
        if refusal is None:
            self.requests.count(request.user.name, attributes)
        else:
            details: Object = {"name": attributes.name} if attributes.name else {}
            if attributes.group:
                details["group"] = attributes.group
            if attributes.resource:
                details["kind"] = attributes.resource
            raise ApiFailure(403, "Forbidden", refusal, details)

    async def _page(self, request: HttpRequest) -> HttpResponse | None:
        if request.path == "/metrics":
            return HttpResponse(200, exposition([self.requests.family()]), CONTENT_TYPE)
        for page in self.registry.hooks.pages:
            response = await page(request)
            if response is not None:
                return response
        if request.parts[0] == "apis" and len(request.parts) > 2 and self.registry.kinds.serves_group(request.parts[1]):
            raise failure.no_such_resource()
        return _NO_PAGE

    # -- writing ---------------------------------------------------------------------------------------------
    def _write(self, request: HttpRequest, operation: str = "Update") -> WriteOptions:
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

    async def _create(self, request: HttpRequest, kind: Kind, namespace: str) -> HttpResponse:
        if kind.info.namespaced and not namespace:
            raise bad_request("an empty namespace may not be set during creation")
        view, write = View(request), self._write(request)
        obj = parse_object(request, await request.body())
        write = _strict(write, request)
        _check_custom(kind.info, obj)
        if isinstance(metadata := obj.get("metadata"), dict) and metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        entry = await self.registry.create_entry(kind, namespace, obj, write)
        return view.respond(view.one(kind, entry), 201)

    async def _update(
        self, request: HttpRequest, kind: Kind, namespace: str, name: str, subresource: str
    ) -> HttpResponse:
        view, write = View(request), self._write(request)
        obj = parse_object(request, await request.body())
        write = _strict(write, request)
        _check_custom(kind.info, obj)
        check_identity(kind.info, namespace, name, obj)  # before anything is looked up
        conditional = not kind.info.model or kind.info.plural in _CONDITIONAL
        if conditional and not subresource and not obj["metadata"].get("resourceVersion"):
            cause = Cause("FieldValueInvalid", "Invalid value: 0: must be specified for an update", _VERSION)
            raise failure.invalid(kind.info, name, (cause,), kind=kind.info.plural)
        entry = await self.registry.update_entry(kind, namespace, name, lambda _: obj, subresource, write)
        return view.respond(view.one(kind, entry))

    async def _patch(
        self, request: HttpRequest, kind: Kind, namespace: str, name: str, subresource: str
    ) -> HttpResponse:
        type = PATCH_TYPES.get(media_type(request))
        if type is None:
            raise ApiFailure(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
        view = View(request)
        write = self._write(request, "Apply" if type == "apply" else "Update")
        patch = parse(request, await request.body())
        write = _strict(write, request, patch=type != "apply")
        existed = type != "apply" or kind.table.get(namespace, name) is not None
        if not existed:
            info = kind.info
            creation = Attributes("create", info.group, info.version, info.plural, subresource, namespace, name)
            self._authorize(request, creation)
        entry = await self.registry.patch_entry(
            kind, namespace, name, patch, type, subresource, write, force=request.query.get("force") == "true"
        )
        return view.respond(view.one(kind, entry), 200 if existed else 201)

    async def _delete_options(self, request: HttpRequest) -> tuple[Delete, WriteOptions]:
        """From the query and the body; the body wins."""
        write, query = self._write(request), request.query
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

    async def _delete(self, request: HttpRequest, kind: Kind, namespace: str, name: str) -> HttpResponse:
        view = View(request)
        options, write = await self._delete_options(request)
        if options.propagation is None and (kind.info.group, kind.info.plural) == ("batch", "jobs"):
            # Older than garbage collection, and kept so.
            options = msgspec.structs.replace(options, propagation="Orphan")
            request.warnings.append(
                "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove "
                "them or set propagationPolicy=Orphan to suppress this warning"
            )
        entry, removed = await self.registry.delete_entry(kind, namespace, name, options, write)
        if removed and kind.info.plural != "pods":
            return view.respond(_encode(_success(kind.info, entry)))
        return view.respond(view.one(kind, kind.show(entry)))

    async def _delete_collection(self, request: HttpRequest, kind: Kind, namespace: str) -> HttpResponse:
        view = View(request)
        options, write = await self._delete_options(request)
        selection = self.reader.selection(request, kind, namespace)
        deleted: list[StoreEntry] = []
        for entry in kind.table.select(selection):
            try:
                last, _ = await self.registry.delete_entry(kind, entry.namespace, entry.name, options, write)
            except ApiFailure as error:
                if error.status != 404:  # another request was faster
                    raise
                continue
            deleted.append(kind.show(last))
        metadata = {"resourceVersion": str(self.registry.store.version)}
        return view.respond(view.many(kind, deleted, metadata))

    # -- other pages ----------------------------------------------------------------------------------
    async def _virtual(self, request: HttpRequest, kind: Kind, namespace: str) -> HttpResponse:
        """Reviews, and bindings posted to the collection."""
        if request.method != "POST":
            raise failure.method_not_allowed()
        if not View(request).plain:
            raise not_acceptable()
        obj = parse_object(request, await request.body())
        if kind.info.plural == "bindings":
            name = (obj.get("metadata") or {}).get("name", "")
            await bind(self.registry, namespace, name, obj, self._write(request), kind.info)
            return json_response({**_done(), "code": 201}, 201)
        review = self.registry.hooks.reviews.get(kind.info.plural)
        if review is None:
            raise failure.no_such_resource()
        obj.setdefault("apiVersion", kind.info.api_version)
        obj.setdefault("kind", kind.info.kind)
        return json_response(await review(obj, namespace, request.user), 201)

    async def _subresource(
        self, request: HttpRequest, kind: Kind, namespace: str, name: str, subresource: str, verb: str
    ) -> HttpResponse | None:
        info = kind.info
        connect = self.registry.hooks.connect.get((info.plural, subresource))
        if connect is not None and not info.group:
            if subresource in CONNECT_KINDS:
                await self._admit_connect(request, info, namespace, name, subresource)
            return await connect(request, info, namespace, name)
        if subresource not in info.subresources:
            raise failure.no_such_resource()
        if subresource in _STORED:
            if verb == "get":
                return self.reader.get(request, kind, namespace, name)
            if verb == "update":
                return await self._update(request, kind, namespace, name, subresource)
            if verb == "patch":
                return await self._patch(request, kind, namespace, name, subresource)
        elif subresource == "scale":
            return await self._scale(request, kind, namespace, name, verb)
        elif subresource == "binding" and verb == "create":
            body = parse_object(request, await request.body())
            await bind(self.registry, namespace, name, body, self._write(request))
            return json_response({**_done(), "code": 201}, 201)
        elif subresource == "eviction" and verb == "create":
            body = parse_object(request, await request.body())
            options = body.get("deleteOptions") or {}
            write = self._write(request)
            if options.get("dryRun"):
                write = msgspec.structs.replace(write, dry_run=True)
            await evict(self.registry, namespace, name, body, write)
            return json_response({**_done(), "code": 201}, 201)
        raise failure.method_not_allowed()

    async def _admit_connect(
        self, request: HttpRequest, info: ResourceInfo, namespace: str, name: str, subresource: str
    ) -> None:
        """Raises ApiFailure when admission refuses the connection. It sees the options, as an object."""
        kind = CONNECT_KINDS[subresource][info.plural]
        options: Object = {"kind": kind, "apiVersion": "v1"}
        for option in ("container", "path"):
            if value := request.query.get(option):
                options[option] = value
        options |= {
            stream: True for stream in ("stdin", "stdout", "stderr", "tty") if request.query.get(stream) == "true"
        }
        if command := request.query_all("command"):
            options["command"] = command
        asked = AdmissionRequest(
            "CONNECT", info, subresource, namespace, name, options, None, request.user, kind=("", "v1", kind)
        )
        await admitted(self.registry.hooks.admission, asked)

    async def _scale(self, request: HttpRequest, kind: Kind, namespace: str, name: str, verb: str) -> HttpResponse:
        if verb == "get":
            return json_response(scale_of(kind, self.reader.entry(kind, namespace, name).obj))
        body = parse(request, await request.body())
        if verb == "update":
            wanted = body
        elif verb == "patch":
            type = PATCH_TYPES.get(media_type(request))
            if type == "apply":
                return await self._apply_scale(request, kind, namespace, name, body)
            live = scale_of(kind, self.reader.entry(kind, namespace, name).obj)
            if type == "json":
                wanted = json_patch(live, body)
            else:
                wanted = merge_patch(live, body)
            if not (isinstance(body, dict) and (body.get("metadata") or {}).get("resourceVersion")):
                wanted = {**wanted, "metadata": {}}
        else:
            raise failure.method_not_allowed()
        if not isinstance(wanted, dict):
            raise bad_request("the body of the request is not a Scale")
        entry = await self.registry.update_entry(
            kind, namespace, name, lambda old: with_scale(kind, old, wanted), "scale", self._write(request)
        )
        return json_response(scale_of(kind, entry.obj))

    async def _apply_scale(
        self, request: HttpRequest, kind: Kind, namespace: str, name: str, scale: Object
    ) -> HttpResponse:
        write = self._write(request, "Apply")
        manager = self.registry.manager(kind, "scale", write)
        force, now = request.query.get("force") == "true", self.registry.now()
        entry = await self.registry.update_entry(
            kind,
            namespace,
            name,
            lambda old: with_applied_scale(kind, old, scale, manager, force=force, now=now),
            "scale",
            write,
        )
        return json_response(scale_of(kind, entry.obj))


_encode = msgspec.json.Encoder().encode
_NO_PAGE = HttpResponse(404, b"404 page not found\n", "text/plain; charset=utf-8")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


def _verb(request: HttpRequest, target: Target) -> str:
    method = request.method
    if method in ("GET", "HEAD"):
        if target.subresource:
            return "get"
        if not target.name and request.query.get("watch") in ("true", "1"):
            return "watch"
        return "get" if target.name else "list"
    if method == "DELETE":
        return "delete" if target.name else "deletecollection"
    verb = _VERBS.get(method)
    if verb is None or (not target.name and verb in ("update", "patch")):
        raise failure.method_not_allowed()
    if verb == "create" and target.name and not target.subresource:
        raise failure.method_not_allowed()
    return verb


def _not_impersonated(request: HttpRequest, target: Target | None, caller: User) -> ApiFailure:
    """403, which names the right to do just this request as another user."""
    if target is None:
        wanted = Attributes(f"impersonate-on:user-info:{request.method.lower()}", path=request.path)
    else:
        wanted = _attributes(f"impersonate-on:user-info:{_verb(request, target)}", target, target.name)
    return ApiFailure(403, "Forbidden", denial(caller, wanted), {})


def _strict(write: WriteOptions, request: HttpRequest, *, patch: bool = False) -> WriteOptions:
    """Return the options of a write whose body is parsed."""
    if request.repeated is None and not patch:
        return write
    return msgspec.structs.replace(write, repeated=request.repeated, patch=patch)


def _failed(error: ApiFailure) -> HttpResponse:
    response = HttpResponse(error.status, _encode(error.to_status()))
    if error.retry_after:
        response.headers = ((b"retry-after", str(error.retry_after).encode()),)
    return response


def _check_custom(info: ResourceInfo, obj: Object) -> None:
    """Built-in kinds are known by their URL; objects of others say what they are."""
    if not info.model and not obj.get("apiVersion"):
        raise bad_request(
            f"the API version in the data () does not match the expected API version ({info.api_version})"
        )


def _selected(selector: str, wanted: str) -> str:
    """The only value that a field selector allows for the field `wanted`, "" when it allows several."""
    for part in selector.split(","):
        field, _, value = part.partition("=")
        if field == wanted:
            return value.removeprefix("=")
    return ""


def _success(info: ResourceInfo, entry: StoreEntry) -> Object:
    details: Object = {"name": entry.name, "kind": info.plural, "uid": entry.obj["metadata"]["uid"]}
    if info.group:
        details["group"] = info.group
    return {**_done(), "details": details}


def _done() -> Object:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
