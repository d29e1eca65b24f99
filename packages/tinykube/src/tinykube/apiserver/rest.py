"""The REST face of the registry: one ASGI application for everything below /api and /apis, and for the other pages.

Each request is authenticated, its path taken apart, authorized, and handed to the function for its verb. Functions give
a `HttpResponse`, or None when they have spoken to the client themselves (watches, streams). Every refusal is an
`ApiFailure`, and only here it becomes a Status object.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec

from kubekit.kube.exposition import CONTENT_TYPE, exposition
from tinykube.apiserver import failure
from tinykube.apiserver.asgi import BodyTooLarge, HttpRequest, HttpResponse, Receive, Scope, Send
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.hooks import SYSTEM, Attributes, ImpersonationRefused, User
from tinykube.apiserver.metrics import Requests
from tinykube.apiserver.negotiation import warning_headers
from tinykube.apiserver.rbac import denial
from tinykube.apiserver.reading import ObjectReader
from tinykube.apiserver.registry import Registry
from tinykube.apiserver.request_target import Target, attributes_of, only_value, parse_path, verb_of
from tinykube.apiserver.subresource_requests import SubresourceRequests
from tinykube.apiserver.write_requests import WriteRequests

Object = dict[str, Any]
log = logging.getLogger("tinykube.apiserver")


class Rest:
    """The ASGI application. `close` ends the open watches."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.reader = ObjectReader(registry)
        self._writes = WriteRequests(registry, self.reader, self._authorize)
        self._subresources = SubresourceRequests(registry, self.reader, self._writes)
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
            self._authorize(request, attributes_of(verb_of(request, target), target, target.name))
            if self.registry.kinds.serves_group(target.group):
                raise failure.no_such_resource()
            return await self._page(request)
        verb = verb_of(request, target)
        name = target.name
        if not name and verb in ("list", "watch", "deletecollection"):
            # A user who may read one object may list it alone.
            name = only_value(request.query.get("fieldSelector", ""), "metadata.name")
        selected_node = only_value(request.query.get("fieldSelector", ""), "spec.nodeName")
        self._authorize(request, attributes_of(verb, target, name, selected_node))
        if not target.group and (target.plural, target.subresource) in _STREAMS:
            self._authorize_stream(request, target, verb)
        namespace = target.namespace if kind.info.namespaced else ""
        if kind.info.namespaced and target.name and not namespace:
            raise failure.no_such_resource()
        if target.subresource:
            return await self._subresources.answer(request, kind, namespace, target.name, target.subresource, verb)
        if kind.info.virtual:
            computed = hooks.computed.get((target.group, target.plural))
            if computed is not None:
                return await computed(request, kind.info, namespace, target.name, verb)
            return await self._subresources.virtual(request, kind, namespace)
        if verb == "get":
            return self.reader.get(request, kind, namespace, target.name)
        if verb in ("list", "watch"):
            return await self.reader.list(request, kind, namespace, target.name)
        if verb == "create":
            return await self._writes.create(request, kind, namespace)
        if verb == "update":
            return await self._writes.update(request, kind, namespace, target.name, "")
        if verb == "patch":
            return await self._writes.patch(request, kind, namespace, target.name, "")
        if verb == "delete":
            return await self._writes.delete(request, kind, namespace, target.name)
        return await self._writes.delete_collection(request, kind, namespace)

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

    def _authorize_stream(self, request: HttpRequest, target: Target, verb: str) -> None:
        """Require the right to create for every method. Raises ApiFailure.

        Clients open WebSockets with GET. The right to read pods does not include the right to run commands in them.
        """
        if verb not in ("get", "create"):
            raise failure.method_not_allowed()
        authorizer = self.registry.hooks.authorizer
        needed = attributes_of("create", target, target.name)
        if authorizer is not None and verb != "create" and authorizer.authorize(request.user, needed) is not None:
            text = f'{target.plural} "{target.name}" is forbidden: '  # a real server gives no reason here
            raise ApiFailure(403, "Forbidden", text, {"name": target.name, "kind": target.plural})

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


_encode = msgspec.json.Encoder().encode
# Since 1.35 all of these need the right to create (AuthorizePodWebsocketUpgradeCreatePermission).
_STREAMS: Final = frozenset({("pods", "exec"), ("pods", "attach"), ("pods", "portforward")})
_NO_PAGE = HttpResponse(404, b"404 page not found\n", "text/plain; charset=utf-8")


def _not_impersonated(request: HttpRequest, target: Target | None, caller: User) -> ApiFailure:
    """403, which names the right to do just this request as another user."""
    if target is None:
        wanted = Attributes(f"impersonate-on:user-info:{request.method.lower()}", path=request.path)
    else:
        wanted = attributes_of(f"impersonate-on:user-info:{verb_of(request, target)}", target, target.name)
    return ApiFailure(403, "Forbidden", denial(caller, wanted), {})


def _failed(error: ApiFailure) -> HttpResponse:
    response = HttpResponse(error.status, _encode(error.to_status()))
    if error.retry_after:
        response.headers = ((b"retry-after", str(error.retry_after).encode()),)
    return response
