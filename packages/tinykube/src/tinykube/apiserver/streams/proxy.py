"""`pods/NAME:PORT/proxy/PATH`: sends the request to a port of the pod and the answer back, as the real API server does.

Buffered, since what is asked so are pages and metrics: no WebSockets, no answers without an end.
"""

from __future__ import annotations

import ssl
from typing import Final
from urllib.parse import quote

from kubekit.errors import KubekitError
from kubekit.kube.http import HttpPool
from tinykube.apiserver.asgi import HttpRequest, HttpResponse
from tinykube.apiserver.failure import ApiFailure, bad_request

_SECONDS: Final = 30.0
_BEFORE_THE_PATH: Final = 8  # "", api, v1, namespaces, NAMESPACE, pods, NAME, proxy
_OF_THE_CONNECTION: Final = frozenset((b"connection", b"upgrade", b"content-length", b"transfer-encoding", b"host"))
_OF_THE_CALLER: Final = frozenset((b"authorization", b"accept-encoding"))


def split_name(name: str) -> tuple[str, str, int]:
    """Return scheme, pod and port of `NAME`, `NAME:PORT` or `SCHEME:NAME:PORT`; port 0 where none is named.

    Raises ApiFailure 400.
    """
    scheme, pod, port = ["", *name.split(":"), ""][:3] if name.count(":") < 2 else name.split(":", 2)
    if scheme not in ("", "http", "https") or (port and not (port.isascii() and port.isdecimal())):
        raise bad_request(f'invalid pod request "{name}"')
    return scheme or "http", pod, int(port or 0)


async def forwarded(request: HttpRequest, host: str, port: int, scheme: str) -> HttpResponse:
    """Return the pod's answer. Raises ApiFailure 503 when it gives none."""
    # Quoted again, so that no decoded line break gets into the head.
    path = "/" + "/".join(quote(part, safe="") for part in request.path.split("/")[_BEFORE_THE_PATH:])
    query = request.scope["query_string"].decode("latin-1")
    body = await request.body()
    lines = [f"{request.method} {path}{'?' if query else ''}{query} HTTP/1.1", f"Host: {host}:{port}"]
    lines += [
        f"{name.decode('latin-1')}: {value.decode('latin-1')}"
        for name, value in request.headers.items()
        if name not in _OF_THE_CONNECTION | _OF_THE_CALLER
    ]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
    pool = HttpPool(host, port, tls=_unverified() if scheme == "https" else None)
    try:
        answer = await pool.request(head.encode("latin-1") + body, timeout=_SECONDS, replay=False)
    except KubekitError as error:
        what = f"error trying to reach service: {error.what}"
        raise ApiFailure(503, "ServiceUnavailable", what) from None
    finally:
        await pool.aclose()
    return HttpResponse(answer.status, answer.body, answer.header(b"content-type") or "text/plain")


def _unverified() -> ssl.SSLContext:
    """The API server does not verify the certificates of pods."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
