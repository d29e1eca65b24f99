"""From HTTP to a raw connection: what exec, attach and port-forward need and uvicorn does not offer.

`UpgradableProtocol` is uvicorn's own protocol, with the connection put into the request's scope. A handler that wants
the connection takes it over, answers 101 and speaks whatever it speaks; uvicorn does not touch it again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kubekit.kube.http import keep_alive
from tinykube.apiserver.asgi import CERTIFICATE_SUBJECT, HttpRequest
from tinykube.apiserver.failure import bad_request
from tinykube.kubelet.requests import accept_upgrade

logger = logging.getLogger("tinykube.apiserver")

_KEY: Final = "tinykube.connection"
LONGEST_HEAD: Final = (1 << 20) + 4096  # bytes of the line and the headers of a request, as of a real API server
_TOO_LONG: Final = b"431 Request Header Fields Too Large"


class UpgradableProtocol(HttpToolsProtocol):
    """Pass as `http` to uvicorn. The subject of a client's certificate is put into the scope as well."""

    def connection_made(  # type: ignore[override]  # as uvicorn's own: it only gets stream transports
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        self._subject = (transport.get_extra_info("peercert") or {}).get("subject", ())
        self._head: int | None = 0  # bytes of the head so far; None in the body

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]  # scopes may be extended, TypedDicts not
        scope[_KEY] = self
        scope[CERTIFICATE_SUBJECT] = self._subject

    def _should_upgrade(self) -> bool:
        return False  # WebSockets go to the application as every other request

    def on_headers_complete(self) -> None:
        self._head = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head = 0
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._head is not None:
            self._head += len(data)
            # NB: any client can connect, and the parser copies a header whenever more of it comes.
            if self._head > LONGEST_HEAD:
                kind = b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\n"
                self.transport.write(b"HTTP/1.1 " + _TOO_LONG + b"\r\n" + kind + _TOO_LONG)
                self.transport.close()
                return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return  # the application decides; nothing may follow before its 101
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def take(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The connection as streams; it is the caller's to close."""
        self.cycle.disconnected = True  # this request gets no HTTP answer any more
        self.connections.discard(self)
        if (sock := self.transport.get_extra_info("socket")) is not None:
            keep_alive(sock)  # the end of a client may never arrive behind bytes that this side does not read
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        return reader, asyncio.StreamWriter(self.transport, protocol, reader, loop)


def wanted(request: HttpRequest) -> str:
    """`websocket`, `spdy/3.1` or empty: what a request asks to become."""
    if "upgrade" not in request.header(b"connection").lower():
        return ""
    return request.header(b"upgrade").lower()


def switch(request: HttpRequest, headers: dict[str, str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Takes the connection of a request over and answers 101 with `headers`. Raises ApiFailure 400 if it cannot."""
    connection: Any = request.scope.get(_KEY)
    if connection is None:
        raise bad_request("this server cannot upgrade connections")
    reader, writer = connection.take()
    accept_upgrade(writer, headers)
    return reader, writer
