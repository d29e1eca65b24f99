"""Requests to subresources, and to the resources that are answered and never stored."""

from __future__ import annotations

from typing import Any

import msgspec

from tinykube.apiserver import failure
from tinykube.apiserver.admitting import admitted
from tinykube.apiserver.asgi import HttpRequest, HttpResponse, json_response
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.discovery import CONNECT_KINDS
from tinykube.apiserver.failure import bad_request
from tinykube.apiserver.hooks import AdmissionRequest
from tinykube.apiserver.kinds import Kind
from tinykube.apiserver.negotiation import PATCH_TYPES, View, media_type, not_acceptable, parse, parse_object
from tinykube.apiserver.patch import json_patch, merge_patch
from tinykube.apiserver.reading import ObjectReader
from tinykube.apiserver.registry import Registry
from tinykube.apiserver.scales import scale_of, with_applied_scale, with_scale
from tinykube.apiserver.subresources import bind, evict
from tinykube.apiserver.write_requests import WriteRequests, done

Object = dict[str, Any]

_STORED = frozenset(("status", "finalize", "ephemeralcontainers", "resize", "approval"))


class SubresourceRequests:
    """Answers requests to subresources. The answer is None where a stream has answered the client."""

    def __init__(self, registry: Registry, reader: ObjectReader, writes: WriteRequests) -> None:
        self._registry = registry
        self._reader = reader
        self._writes = writes

    async def virtual(self, request: HttpRequest, kind: Kind, namespace: str) -> HttpResponse:
        """Reviews, and bindings posted to the collection."""
        if request.method != "POST":
            raise failure.method_not_allowed()
        if not View(request).plain:
            raise not_acceptable()
        obj = parse_object(request, await request.body())
        if kind.info.plural == "bindings":
            name = (obj.get("metadata") or {}).get("name", "")
            await bind(self._registry, namespace, name, obj, self._writes.options(request), kind.info)
            return json_response({**done(), "code": 201}, 201)
        review = self._registry.hooks.reviews.get(kind.info.plural)
        if review is None:
            raise failure.no_such_resource()
        obj.setdefault("apiVersion", kind.info.api_version)
        obj.setdefault("kind", kind.info.kind)
        return json_response(await review(obj, namespace, request.user), 201)

    async def answer(
        self, request: HttpRequest, kind: Kind, namespace: str, name: str, subresource: str, verb: str
    ) -> HttpResponse | None:
        info = kind.info
        connect = self._registry.hooks.connect.get((info.plural, subresource))
        if connect is not None and not info.group:
            if subresource in CONNECT_KINDS:
                await self._admit_connect(request, info, namespace, name, subresource)
            return await connect(request, info, namespace, name)
        if subresource not in info.subresources:
            raise failure.no_such_resource()
        if subresource in _STORED:
            if verb == "get":
                return self._reader.get(request, kind, namespace, name)
            if verb == "update":
                return await self._writes.update(request, kind, namespace, name, subresource)
            if verb == "patch":
                return await self._writes.patch(request, kind, namespace, name, subresource)
        elif subresource == "scale":
            return await self._scale(request, kind, namespace, name, verb)
        elif subresource == "binding" and verb == "create":
            body = parse_object(request, await request.body())
            await bind(self._registry, namespace, name, body, self._writes.options(request))
            return json_response({**done(), "code": 201}, 201)
        elif subresource == "eviction" and verb == "create":
            body = parse_object(request, await request.body())
            options = body.get("deleteOptions") or {}
            write = self._writes.options(request)
            if options.get("dryRun"):
                write = msgspec.structs.replace(write, dry_run=True)
            await evict(self._registry, namespace, name, body, write)
            return json_response({**done(), "code": 201}, 201)
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
        await admitted(self._registry.hooks.admission, asked)

    async def _scale(self, request: HttpRequest, kind: Kind, namespace: str, name: str, verb: str) -> HttpResponse:
        if verb == "get":
            return json_response(scale_of(kind, self._reader.entry(kind, namespace, name).obj))
        body = parse(request, await request.body())
        if verb == "update":
            wanted = body
        elif verb == "patch":
            type = PATCH_TYPES.get(media_type(request))
            if type == "apply":
                return await self._apply_scale(request, kind, namespace, name, body)
            live = scale_of(kind, self._reader.entry(kind, namespace, name).obj)
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
        entry = await self._registry.writer.update(
            kind, namespace, name, lambda old: with_scale(kind, old, wanted), "scale", self._writes.options(request)
        )
        return json_response(scale_of(kind, entry.obj))

    async def _apply_scale(
        self, request: HttpRequest, kind: Kind, namespace: str, name: str, scale: Object
    ) -> HttpResponse:
        write = self._writes.options(request, "Apply")
        manager = self._registry.writer.manager(kind, "scale", write)
        force, now = request.query.get("force") == "true", self._registry.now()
        entry = await self._registry.writer.update(
            kind,
            namespace,
            name,
            lambda old: with_applied_scale(kind, old, scale, manager, force=force, now=now),
            "scale",
            write,
        )
        return json_response(scale_of(kind, entry.obj))
