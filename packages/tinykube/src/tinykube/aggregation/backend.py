"""One API server behind the embedded one: its check, and the requests that are passed on to it.

Source: the behaviour of kube-aggregator 1.36. Upgrades of connections (exec, WebSockets) are not passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote

from kubekit.documents import DocumentError, decode_json
from kubekit.errors import KubekitError
from kubekit.kube.http import ClientResponse, HttpPool, read_whole
from kubekit.kube.tasks import first_of
from tinykube.aggregation.front_proxy import FrontProxy, user_headers
from tinykube.apiserver.asgi import HttpRequest, HttpResponse
from tinykube.apiserver.authenticator import for_others
from tinykube.apiserver.hooks import User

Object = dict[str, Any]
Resolve = Callable[[str, str, int], tuple[str, int] | None]
CHECKER: Final = User("system:kube-aggregator", ("system:masters",))
UNAVAILABLE: Final = HttpResponse(503, b"service unavailable\n", "text/plain; charset=utf-8")
_LONGEST: Final = 16 << 20  # bytes of an answer that is held in memory; longer ones are passed on in pieces
_CHECK_S: Final = 5.0
_SECONDS: Final = 60.0
_SILENT_S: Final = 3600.0  # of a watch
_DROPPED: Final = frozenset(
    (
        *(b"authorization", b"connection", b"content-length", b"expect", b"host", b"transfer-encoding", b"upgrade"),
        b"keep-alive",
    )
)
_OF_THE_ANSWER: Final = frozenset(
    (b"connection", b"content-length", b"content-type", b"keep-alive", b"transfer-encoding")
)


class ServiceState(Exception):
    """An aggregated server that cannot be used: the reason and the message of the condition Available."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Backend:
    """The server of one APIService.

    Args:
        spec: of the APIService.
        resolve: returns the address behind a service's port, None where nothing is ready.
    """

    def __init__(self, spec: Object, proxy: FrontProxy, resolve: Resolve) -> None:
        self.spec = spec
        self.available = False  # what the last check found
        self.host = ""  # of a Service that is a name outside
        self.resources: list[Object] = []  # as its own discovery lists them
        service = spec["service"]
        self.service: tuple[str, str] = (service["namespace"], service["name"])
        self.port: int = service.get("port") or 443
        self._proxy = proxy
        self._resolve = resolve
        self._pool: HttpPool | None = None

    async def aclose(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()
            self._pool = None

    async def _connection(self) -> HttpPool:
        address = (self.host, self.port) if self.host else self._resolve(*self.service, self.port)
        namespace, name = self.service
        if address is None:
            text = f'endpointslices for service/{name} in "{namespace}" have no addresses'
            raise ServiceState("MissingEndpoints", text)
        if self._pool is not None and (self._pool.host, self._pool.port) != address:
            await self.aclose()
        if self._pool is None:
            try:
                context = self._proxy.context(self.spec)
            except ValueError as error:
                raise ServiceState("FailedDiscoveryCheck", str(error)) from None
            self._pool = HttpPool(*address, tls=context, server_name=f"{name}.{namespace}.svc")
        return self._pool

    async def check(self) -> None:
        """Ask the server for its resources, and remember them. Raises ServiceState."""
        path = f"/apis/{self.spec['group']}/{self.spec['version']}"
        pool = await self._connection()
        where = f"{pool.place}{path}"
        lines = [f"GET {path} HTTP/1.1", f"Host: {pool.host}:{pool.port}", "Accept: application/json"]
        head = "\r\n".join([*lines, *user_headers(CHECKER), "Connection: close", "", ""])
        try:
            async with (
                asyncio.timeout(_CHECK_S),
                pool.stream(head.encode(), timeout=_CHECK_S, idle=_CHECK_S) as (answer, read),
            ):
                if not 200 <= answer.status < 300:
                    text = f"failing or missing response from {where}: bad status from {where}: {answer.status}"
                    raise ServiceState("FailedDiscoveryCheck", text)
                self.resources = _resources(await read_whole(read, _LONGEST, pool.place))
        except (KubekitError, TimeoutError) as error:
            text = f"failing or missing response from {where}: {error or f'no answer within {_CHECK_S:g} s'}"
            raise ServiceState("FailedDiscoveryCheck", text) from None

    async def forward(self, request: HttpRequest) -> HttpResponse | None:
        """Return the server's answer, None for one that was passed on piece by piece."""
        try:
            pool = await self._connection()
        except ServiceState:
            return UNAVAILABLE
        body = await request.body()
        path = "/" + "/".join(quote(part, safe="") for part in request.path.split("/")[1:])
        query = request.scope["query_string"]
        target = path.encode() + (b"?" + query if query else b"")
        lines = [b"%s %s HTTP/1.1" % (request.method.encode(), target), f"Host: {pool.host}:{pool.port}".encode()]
        lines += [
            b"%s: %s" % (name, value)
            for name, value in for_others(request.headers.items())
            if name not in _DROPPED and not name.startswith(b"x-remote-")
        ]
        # NB: UTF-8, as the Go API server writes names: with any other encoding two users could have one name.
        lines += [line.encode() for line in (*user_headers(request.user), f"Content-Length: {len(body)}", "", "")]
        begun, bodiless = False, request.method == "HEAD"
        try:
            data = b"\r\n".join(lines) + body
            async with pool.stream(data, timeout=_SECONDS, idle=_SILENT_S, bodiless=bodiless) as (answer, read):
                if bodiless or answer.status == 204:
                    return _whole(answer, b"")
                if answer.status >= 400:
                    return _whole(answer, answer.body)
                if int(answer.headers.get(b"content-length", _LONGEST + 1)) <= _LONGEST:
                    async with asyncio.timeout(_SECONDS):
                        return _whole(answer, await read_whole(read, _LONGEST, pool.place))
                begun = True
                headers = [(b"content-type", _kind(answer).encode("latin-1")), *_passed(answer)]
                await request.send({"type": "http.response.start", "status": answer.status, "headers": headers})
                await first_of(_pass_on(request, read), _disconnected(request))
        except (KubekitError, TimeoutError) as error:
            if not begun:
                return HttpResponse(503, f"{error}\n".encode(), "text/plain; charset=utf-8")
        return None


def _resources(body: bytes) -> list[Object]:
    """Return the resources of an APIResourceList; none of another document."""
    try:
        found = decode_json(body, limit=_LONGEST)
    except DocumentError:
        return []
    listed = found.get("resources") if isinstance(found, dict) else None
    return [one for one in listed or () if isinstance(one, dict) and isinstance(one.get("name"), str)]


async def _pass_on(request: HttpRequest, read: Callable[[], Awaitable[bytes | None]]) -> None:
    while (part := await read()) is not None:
        await request.send({"type": "http.response.body", "body": part, "more_body": True})
    await request.send({"type": "http.response.body", "body": b""})


async def _disconnected(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _whole(answer: ClientResponse, body: bytes) -> HttpResponse:
    return HttpResponse(answer.status, body, _kind(answer), tuple(_passed(answer)))


def _kind(answer: ClientResponse) -> str:
    return answer.header(b"content-type") or "text/plain"


def _passed(answer: ClientResponse) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in answer.pairs() if name not in _OF_THE_ANSWER]
