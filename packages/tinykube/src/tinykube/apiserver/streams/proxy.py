"""`pods/NAME:PORT/proxy/PATH` and the same of services: sends the request to a port of a pod and the answer back.

Redirects, and links in pages, that begin at the root of the server lead through the API server too. So pages are held
in memory, up to 16 MiB; everything else is passed on as it comes. There are no WebSockets.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import quote

from kubekit.errors import KubekitError
from kubekit.kube.http import ClientResponse, HttpPool, read_whole
from kubekit.kube.tasks import first_of
from tinykube.apiserver.asgi import HttpRequest, HttpResponse
from tinykube.apiserver.authenticator import for_others
from tinykube.apiserver.failure import ApiFailure, bad_request
from tinykube.apiserver.hooks import Object
from tinykube.apiserver.streams.links import is_page, led_through, rewrite_links

_SECONDS: Final = 30.0
_LONGEST_PAGE: Final = 16 << 20  # bytes
_SILENT_SECONDS: Final = 3600.0  # of an answer that comes piece by piece
_BEFORE_THE_PATH: Final = 8  # "", api, v1, namespaces, NAMESPACE, pods, NAME, proxy
_OF_THE_CONNECTION: Final = frozenset((b"connection", b"upgrade", b"content-length", b"transfer-encoding", b"host"))
_OF_URLS: Final = "/:?=&%;+,@!$'()*~#[]"
_BODILESS: Final = (204, 304)  # statuses without a body, even if the head gives a length
_OF_THE_ANSWER: Final = frozenset((b"content-type", b"date", b"keep-alive", b"server"))


def split_name(name: str) -> tuple[str, str, int]:
    """Return scheme, pod and port of `NAME`, `NAME:PORT` or `SCHEME:NAME:PORT`; port 0 where none is named.

    Raises ApiFailure 400.
    """
    scheme, pod, port = _split(name)
    if scheme not in ("", "http", "https") or (port and not (port.isascii() and port.isdecimal())):
        raise bad_request(f'invalid pod request "{name}"')
    return scheme or "http", pod, int(port or 0)


def split_service(name: str) -> tuple[str, str, str]:
    """Return scheme, service and port, a number or a name, as `split_name` does. Raises ApiFailure 400."""
    scheme, service, port = _split(name)
    if scheme not in ("", "http", "https") or ":" in port:
        raise bad_request(f'invalid service request "{name}"')
    return scheme or "http", service, port


def _split(name: str) -> list[str]:
    return ["", *name.split(":"), ""][:3] if name.count(":") < 2 else name.split(":", 2)


def service_address(service: Object, endpoints: Object | None, port: str) -> tuple[str, int]:
    """Return address and port of a ready pod behind a port of a service, by its name or number; empty for its only one.

    Raises ApiFailure 503.
    """
    name = service["metadata"]["name"]
    listed = service["spec"].get("ports") or []
    found = [one for one in listed if port in (one.get("name"), str(one["port"])) or (not port and len(listed) == 1)]
    if not found:
        raise ApiFailure(503, "ServiceUnavailable", f'no service port "{port}" found for service "{name}"')
    for subset in (endpoints or {}).get("subsets") or ():
        numbers = [one["port"] for one in subset["ports"] if (one.get("name") or "") == (found[0].get("name") or "")]
        for address in subset.get("addresses") or () if numbers else ():
            return address["ip"], numbers[0]
    raise ApiFailure(503, "ServiceUnavailable", f'no endpoints available for service "{name}"')


async def forwarded(request: HttpRequest, host: str, port: int, scheme: str) -> HttpResponse | None:
    """Return the pod's answer, None for one that was passed on. Raises ApiFailure 503 when it gives none."""
    segments = request.path.split("/")
    query = request.scope["query_string"].decode("latin-1")
    if len(segments) == _BEFORE_THE_PATH and request.method in ("GET", "HEAD"):
        # Links of the page that are relative would be those of the API server without the slash.
        place = f"{request.path}/{'?' if query else ''}{query}"
        return HttpResponse(
            301, b"", "text/plain; charset=utf-8", ((b"location", quote(place, safe=_OF_URLS).encode()),)
        )
    # Quoted again, so that no decoded line break gets into the head.
    path = "/" + "/".join(quote(part, safe="") for part in segments[_BEFORE_THE_PATH:])
    prefix = "/".join(segments[:_BEFORE_THE_PATH])
    body = await request.body()
    heads = request.method == "HEAD"
    lines = [f"{request.method} {path}{'?' if query else ''}{query} HTTP/1.1", f"Host: {host}:{port}"]
    lines += [
        f"{name.decode('latin-1')}: {value.decode('latin-1')}"
        for name, value in for_others(request.headers.items())
        if name not in _OF_THE_CONNECTION and name != b"accept-encoding"
    ]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
    pool = HttpPool(host, port, tls=_unverified() if scheme == "https" else None)
    sent = head.encode("latin-1") + body
    begun = False
    try:
        async with pool.stream(sent, timeout=_SECONDS, idle=_SILENT_SECONDS, bodiless=heads) as (answer, read):
            if heads:
                begun = True
                await _start(request, answer, prefix)
                await request.send({"type": "http.response.body", "body": b""})
                return None
            if answer.status >= 400:
                return _whole(answer, answer.body, prefix)
            if answer.status in _BODILESS:
                return _whole(answer, b"", prefix)
            if _has_links(answer):
                async with asyncio.timeout(_SECONDS):
                    return _whole(answer, await read_whole(read, _LONGEST_PAGE, pool.place), prefix)
            begun = True
            await _start(request, answer, prefix)
            await first_of(_pass_on(request, read), _disconnected(request))
    except (KubekitError, TimeoutError) as error:
        if not begun:
            what = f"error trying to reach service: {error}"
            raise ApiFailure(503, "ServiceUnavailable", what) from None
    finally:
        await pool.aclose()
    return None


async def _start(request: HttpRequest, answer: ClientResponse, prefix: str) -> None:
    headers = [(b"content-type", _kind(answer).encode()), *_passed(answer, prefix)]
    if (length := answer.headers.get(b"content-length")) is not None:
        headers.append((b"content-length", length))
    await request.send({"type": "http.response.start", "status": answer.status, "headers": headers})


async def _pass_on(request: HttpRequest, read: Callable[[], Awaitable[bytes | None]]) -> None:
    while (part := await read()) is not None:
        await request.send({"type": "http.response.body", "body": part, "more_body": True})
    await request.send({"type": "http.response.body", "body": b""})


async def _disconnected(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _whole(answer: ClientResponse, body: bytes, prefix: str) -> HttpResponse:
    if _has_links(answer):
        body = rewrite_links(body, prefix)
    return HttpResponse(answer.status, body, _kind(answer), tuple(_passed(answer, prefix)))


def _has_links(answer: ClientResponse) -> bool:
    return is_page(_kind(answer)) and b"content-encoding" not in answer.headers


def _kind(answer: ClientResponse) -> str:
    return answer.header(b"content-type") or "text/plain"


def _passed(answer: ClientResponse, prefix: str) -> list[tuple[bytes, bytes]]:
    left = _OF_THE_CONNECTION | _OF_THE_ANSWER
    return [
        (name, led_through(value.decode("latin-1"), prefix).encode("latin-1") if name == b"location" else value)
        for name, value in answer.pairs()
        if name not in left
    ]


def _unverified() -> ssl.SSLContext:
    """The API server does not verify the certificates of pods."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
