"""The client: typed verbs on the API server's paths, decoded straight into our Structs.

Invariants:

- Every failure is an `ApiError`; whether another try makes sense is its type.
- Only the server's own request to wait (429 and 5xx with Retry-After) is honoured in here, within the timeout; every
  other retry is the caller's, who knows whether the world has changed.
- A Struct is never sent back whole as an update: it is narrow, and what was skipped in decoding would be lost. Writes
  are creates, patches and server-side apply.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar, overload
from urllib.parse import urlencode

from kubekit.api.meta import KubeObject, Resource
from kubekit.kube.auth import Credential
from kubekit.kube.codec import BadItem, ListPage, decode_any, decode_list, decode_object, decoder, encode
from kubekit.kube.config import ApiEndpoint, load, load_client_certificate
from kubekit.kube.errors import ApiError, Gone, ServerError, TooManyRequests, from_response
from kubekit.kube.http import ClientResponse, HttpPool
from kubekit.kube.objects import object_data, object_path, selectors
from kubekit.kube.watch import WatchEvent, decode_event, watch_params

K = TypeVar("K", bound=KubeObject)
Body = Mapping[str, Any] | list[Any]

log = logging.getLogger("kubekit.kube")

PAGE: Final = 500
_WARNINGS: Final = 100  # different ones that are logged
_LINE_LIMIT: Final = 64 << 20  # bytes; objects end at 3 MiB in etcd
_TIMEOUT_SECONDS: Final = 60.0
_WAITS_AT_MOST: Final = 10  # times that a request obeys Retry-After
_PATCH_TYPES: Final = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


class Client:
    """An API server under one identity. Make one with `connect`; it is meant to be shared by a whole process.

    Args:
        user_agent: the name in the server's logs, and the field manager of calls without one.
        sleep: what waits when the server says Retry-After (virtual in tests).
    """

    def __init__(
        self,
        endpoint: ApiEndpoint,
        *,
        user_agent: str = "kubekit",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        timeout: float = _TIMEOUT_SECONDS,
    ) -> None:
        self.endpoint = endpoint
        self.namespace = endpoint.namespace
        self.user_agent = user_agent
        self._auth = endpoint.auth
        self._credential = Credential()
        self._warnings: set[str] = set()
        self._sleep = sleep
        self._timeout = timeout
        self._pool = HttpPool(endpoint.host, endpoint.port, tls=endpoint.tls, server_name=endpoint.server_name)
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        agent = user_agent.replace("\r", " ").replace("\n", " ")
        self._common = f"Host: {host}:{endpoint.port}\r\nUser-Agent: {agent}\r\nAccept: application/json\r\n"

    @classmethod
    def connect(
        cls, kubeconfig: Path | None = None, context: str | None = None, *, user_agent: str = "kubekit"
    ) -> Self:
        """A client for the configured cluster (see `kubekit.kube.config`). Opens nothing yet. Raises ConfigError."""
        return cls(load(kubeconfig, context), user_agent=user_agent)

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # -- reading ---------------------------------------------------------------------------------------------------

    async def get(self, kind: type[K], name: str, namespace: str | None = None) -> K:
        """One object. Raises NotFound."""
        body = await self.request("GET", object_path(kind.RESOURCE, namespace, name, default=self.namespace))
        obj: K = decode_object(kind, body, name)
        return obj

    async def list(self, kind: type[K], namespace: str | None = None, labels: str = "", fields: str = "") -> list[K]:
        """All objects that match, of all namespaces when `namespace` is None."""
        found: list[K] = []
        async for page in self.pages(kind, namespace, labels, fields):
            if page is None:
                found.clear()
            else:
                found.extend(page.items)
        return found

    async def pages(
        self,
        kind: type[K],
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        *,
        bad: BadItem | None = None,
    ) -> AsyncIterator[ListPage | None]:
        """Yield the list in pages of 500, and None when the continue token expired and the whole list begins again.

        An item that does not fit `kind` raises ServerError, or goes to `bad` and is left out.
        """
        path = object_path(kind.RESOURCE, namespace, None, default=self.namespace)
        params = {"limit": str(PAGE), **selectors(labels, fields)}
        while True:
            try:
                body = await self.request("GET", path, params)
            except Gone:
                if "continue" not in params:
                    raise
                params = selectors(labels, fields)  # no limit: one consistent answer, as client-go does
                yield None
                continue
            page = decode_list(kind, body, bad)
            yield page
            if not page.more:
                return
            params["continue"] = page.more

    def watch(
        self,
        kind: type[K],
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        *,
        bad: BadItem | None = None,
    ) -> AsyncGenerator[WatchEvent[K], None]:
        """Changes after `resource_version`, bookmarks included; ends when the server ends it. Raises Gone, Unreachable.

        Resume with the resource version of the last event.
        """
        seconds = random.randrange(300, 600)
        params = watch_params(resource_version, seconds) | selectors(labels, fields)
        path = object_path(kind.RESOURCE, namespace, None, default=self.namespace)
        return self._watch(kind, path, params, idle=seconds + 30.0, bad=bad)

    async def _watch(
        self, kind: type[K], path: str, params: dict[str, str], *, idle: float, bad: BadItem | None
    ) -> AsyncGenerator[WatchEvent[K], None]:
        rest = b""
        decode = decoder(kind)
        async with self._open(path, params, idle=idle) as read:
            while (data := await read()) is not None:
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > _LINE_LIMIT:
                    raise ServerError(f"a watch event of over {_LINE_LIMIT} bytes", where=path, reason="Undecodable")
                for line in lines:
                    if line.strip():
                        yield decode_event(decode, line, where=path, bad=bad)

    async def stream(
        self,
        path: str,
        params: Mapping[str, str] | None = None,
        *,
        idle: float = 3600.0,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """The body of a GET as it arrives (logs with follow)."""
        async with self._open(path, dict(params or {}), idle=idle, headers=headers) as read:
            while (data := await read()) is not None:
                yield data

    async def answer(
        self, path: str, params: Mapping[str, str] | None = None, *, headers: Mapping[str, str] | None = None
    ) -> ClientResponse:
        """The answer to a GET, whatever its status: that of a server behind the API server's proxy. Raises Unreachable.

        `headers` are sent in addition; `Authorization` is the API server's own, and does not come through its proxy.
        """
        target = f"{path}?{urlencode(params)}" if params else path
        for refused in (False, True):
            head = await self._head("GET", target, None, "", refused, headers)
            response = await self._pool.request(head, timeout=self._timeout, replay=True)
            if response.status != 401:
                break
        return response

    async def bearer_token(self) -> str:
        """The token with which requests are sent now; empty where the user has a certificate or a password."""
        kind, _, token = (await self._auth.credential()).header.partition(" ")
        return token if kind == "Bearer" else ""

    async def server_time(self) -> float | None:
        """The API server's clock as Unix seconds, to a second, by the header `Date`; None where it sends none."""
        path = "/version"
        for refused in (False, True):
            head = await self._head("GET", path, None, "", refused)
            response = await self._pool.request(head, timeout=self._timeout, replay=True)
            if response.status < 300:
                date = response.header(b"date")
                return parsedate_to_datetime(date).timestamp() if date else None
            if response.status != 401:
                break
        raise self._error(response, "GET", path)

    # -- writing ---------------------------------------------------------------------------------------------------

    @overload
    async def create(
        self,
        obj: dict[str, Any],
        *,
        namespace: str | None = None,
        resource: Resource | None = None,
        manager: str = "",
        subresource: str | None = None,
    ) -> dict[str, Any]: ...

    @overload
    async def create(
        self,
        obj: K,
        *,
        namespace: str | None = None,
        resource: Resource | None = None,
        manager: str = "",
        subresource: str | None = None,
    ) -> K: ...

    async def create(
        self,
        obj: K | dict[str, Any],
        *,
        namespace: str | None = None,
        resource: Resource | None = None,
        manager: str = "",
        subresource: str | None = None,
    ) -> K | dict[str, Any]:
        """Creates `obj` and returns what the server made of it, in the same type. Raises AlreadyExists.

        `subresource` posts to one of an existing object (binding, eviction, token), whose name the metadata has.
        """
        where, data, space, name = object_data(obj, resource, namespace, self.namespace)
        path = object_path(where, space, name if subresource else None, subresource, default=self.namespace)
        params = {"fieldManager": manager} if manager else None
        body = await self.request("POST", path, params, data)
        return self._same(obj, body, name)

    @overload
    async def replace(
        self, obj: dict[str, Any], *, namespace: str | None = None, resource: Resource | None = None, manager: str = ""
    ) -> dict[str, Any]: ...

    @overload
    async def replace(
        self, obj: K, *, namespace: str | None = None, resource: Resource | None = None, manager: str = ""
    ) -> K: ...

    async def replace(
        self,
        obj: K | dict[str, Any],
        *,
        namespace: str | None = None,
        resource: Resource | None = None,
        manager: str = "",
    ) -> K | dict[str, Any]:
        """Replaces an object whole; Conflict when its `resourceVersion` is stale.

        NB: of a narrow Struct the fields it does not know are lost; right for kinds that we own whole (Lease).
        """
        where, data, space, name = object_data(obj, resource, namespace, self.namespace)
        params = {"fieldManager": manager} if manager else None
        body = await self.request("PUT", object_path(where, space, name, default=self.namespace), params, data)
        return self._same(obj, body, name)

    async def patch(
        self,
        kind: type[K],
        name: str,
        patch: Body,
        namespace: str | None = None,
        type: Literal["merge", "json", "strategic"] = "merge",
        subresource: str | None = None,
        *,
        manager: str = "",
    ) -> K:
        """Patches one object and returns it. A resourceVersion in a merge patch makes it conditional."""
        path = object_path(kind.RESOURCE, namespace, name, subresource, default=self.namespace)
        params = {"fieldManager": manager} if manager else None
        body = await self.request("PATCH", path, params, patch, content_type=_PATCH_TYPES[type])
        obj: K = decode_object(kind, body, name)
        return obj

    async def apply(
        self,
        obj: KubeObject | Mapping[str, Any],
        manager: str,
        force: bool = True,
        namespace: str | None = None,
        subresource: str | None = None,
        resource: Resource | None = None,
    ) -> dict[str, Any]:
        """Server-side apply of exactly the fields in `obj`; creates what does not exist. Conflict without force."""
        where, data, space, name = object_data(obj, resource, namespace, self.namespace)
        params = {"fieldManager": manager, "force": "true" if force else "false"}
        path = object_path(where, space, name, subresource, default=self.namespace)
        # NB: applying the same twice is the same as once, so it may be sent again on a fresh connection.
        body = await self.request("PATCH", path, params, data, content_type=_PATCH_TYPES["apply"], replay=True)
        answer: dict[str, Any] = decode_any(body)
        return answer

    async def delete(
        self,
        kind: type[KubeObject] | Resource,
        name: str,
        namespace: str | None = None,
        uid: str | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] | None = None,
        *,
        grace_seconds: int | None = None,
    ) -> None:
        """Deletes one object; Conflict when it has another `uid`. Raises NotFound."""
        options: dict[str, Any] = {}
        if uid:
            options["preconditions"] = {"uid": uid}
        if propagation:
            options["propagationPolicy"] = propagation
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if options:
            options = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        where = kind if isinstance(kind, Resource) else kind.RESOURCE
        await self.request("DELETE", object_path(where, namespace, name, default=self.namespace), None, options or None)

    # -- the wire --------------------------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        *,
        replay: bool | None = None,
    ) -> bytes:
        """One raw request; `body` is bytes, or JSON data. Returns the body of a 2xx, raises ApiError for the rest.

        `replay`: may be sent again when a kept connection proves dead; by default for GET only.
        """
        payload = None if body is None else body if isinstance(body, bytes) else encode(body)
        target = f"{path}?{urlencode(params)}" if params else path
        again = method == "GET" if replay is None else replay
        refused = False
        waits = 0
        while True:
            head = await self._head(method, target, payload, content_type, refused)
            response = await self._pool.request(
                head if payload is None else head + payload, timeout=self._timeout, replay=again
            )
            if response.status < 300:
                if b"warning" in response.headers:
                    self._warned(response.headers[b"warning"].decode(errors="replace"), f"{method} {path}")
                return response.body
            error = self._error(response, method, path)
            if response.status == 401 and not refused:
                refused = True
            elif (
                isinstance(error, (TooManyRequests, ServerError))
                and error.retry_after is not None
                and waits < _WAITS_AT_MOST
            ):
                waits += 1
                await self._sleep(min(error.retry_after, self._timeout))
            else:
                raise error

    @contextlib.asynccontextmanager
    async def _open(
        self, path: str, params: dict[str, str], *, idle: float, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Callable[[], Awaitable[bytes | None]]]:
        target = f"{path}?{urlencode(params)}" if params else path
        for refused in (False, True):
            head = await self._head("GET", target, None, "", refused, headers)
            async with self._pool.stream(head, timeout=self._timeout, idle=idle) as (response, read):
                if response.status < 300:
                    yield read
                    return
                error = self._error(response, "GET", path)
                if response.status != 401 or refused:
                    raise error

    async def _head(
        self,
        method: str,
        target: str,
        payload: bytes | None,
        content_type: str,
        refused: bool,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        credential = await self._auth.credential(refused=refused)
        if credential is not self._credential:
            if credential.certificate and credential.certificate != self._credential.certificate:
                self._renew(credential)
            self._credential = credential
        text = f"{method} {self.endpoint.prefix}{target} HTTP/1.1\r\n{self._common}"
        if credential.header:
            text += f"Authorization: {credential.header}\r\n"
        for name, value in (headers or {}).items():
            text += f"{name}: {value}\r\n"
        if payload is not None:
            text += f"Content-Type: {content_type}\r\nContent-Length: {len(payload)}\r\n"
        elif method != "GET":
            text += "Content-Length: 0\r\n"
        return (text + "\r\n").encode("latin-1")

    def _warned(self, text: str, where: str) -> None:
        """The server took the request and has doubts (unknown fields, deprecated versions): said once a text."""
        if text not in self._warnings and len(self._warnings) < _WARNINGS:
            self._warnings.add(text)
            log.warning("API server warns path=%s: %s", where, text)

    def _renew(self, credential: Credential) -> None:
        """A credential plugin gave a client certificate: TLS starts again with it."""
        if self._pool.tls is not None:
            load_client_certificate(self._pool.tls, credential.certificate, credential.key)
            self._pool.renew(self._pool.tls)

    @staticmethod
    def _error(response: ClientResponse, method: str, path: str) -> ApiError:
        return from_response(
            response.status, response.body, where=f"{method} {path}", retry_after=response.header(b"retry-after")
        )

    def _same(self, obj: K | Mapping[str, Any], body: bytes, name: str | None) -> K | dict[str, Any]:
        if isinstance(obj, Mapping):
            answer: dict[str, Any] = decode_any(body)
            return answer
        same: K = decode_object(type(obj), body, name or "")
        return same
