"""A request and a response, as thin as they can be over ASGI.

Starlette would do; at a thousand writes a second its per-request objects cost as much as the write itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

if TYPE_CHECKING:
    from tinykube.apiserver.hooks import User
    from tinykube.apiserver.strictness import RepeatedFields

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# Where in a scope the subject of the client's certificate is, as `ssl.SSLSocket.getpeercert` gives it.
CERTIFICATE_SUBJECT = "tinykube.certificate_subject"

MAX_BODY_BYTES = 3 * 1024 * 1024  # as the real server limits it


class BodyTooLarge(Exception):
    """The request's body is over MAX_BODY_BYTES."""


class HttpRequest:
    """One HTTP request (or WebSocket handshake). `parts` is the path split at its slashes, percent-decoded."""

    __slots__ = (
        "_query",
        "headers",
        "method",
        "parts",
        "path",
        "receive",
        "repeated",
        "scope",
        "send",
        "user",
        "warnings",
    )

    user: User
    repeated: RepeatedFields | None  # of its body, once that is parsed

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.method: str = scope.get("method", "GET")  # a WebSocket scope has none
        self.path: str = scope["path"]
        self.parts = self.path.strip("/").split("/")
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.warnings: list[str] = []
        self.repeated = None
        self._query: dict[str, str] | None = None

    @property
    def query(self) -> dict[str, str]:
        """Query parameters; of a repeated one the last."""
        if self._query is None:
            text = self.scope["query_string"]
            self._query = dict(parse_qsl(text.decode(errors="replace"), keep_blank_values=True)) if text else {}
        return self._query

    def query_all(self, name: str) -> list[str]:
        """Every value of a parameter that may be repeated, such as exec's `command`."""
        pairs = parse_qsl(self.scope["query_string"].decode(errors="replace"), keep_blank_values=True)
        return [value for key, value in pairs if key == name]

    def flag(self, name: str) -> bool:
        return self.query.get(name) in ("true", "1", "True", "t", "T", "TRUE", "")

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    async def body(self) -> bytes:
        """The whole body. Raises BodyTooLarge."""
        message = await self.receive()
        data: bytes = message.get("body", b"")
        chunks, size = [data], len(data)
        if size > MAX_BODY_BYTES:
            raise BodyTooLarge
        while message.get("more_body"):
            message = await self.receive()
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                raise BodyTooLarge
            chunks.append(chunk)
        return b"".join(chunks)


class HttpResponse(msgspec.Struct):
    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()

    async def send(self, send: Send) -> None:
        headers = [
            (b"content-type", self.content_type.encode()),
            (b"content-length", str(len(self.body)).encode()),
            *self.headers,
        ]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


_encode = msgspec.json.Encoder().encode


def json_response(value: object, status: int = 200) -> HttpResponse:
    return HttpResponse(status, _encode(value))
