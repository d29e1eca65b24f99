"""The little of HTTP that components need: GET and HEAD of a few paths, POST of JSON, connections kept open.

A web framework would be two thirds of an operand's memory for a few paths without parameters.

Invariants:

- A head is read to its end within `READ_SECONDS` and `LONGEST_HEAD` bytes, a body within `BODY_SECONDS` and the length
  that is allowed, or the connection is closed. A connection that is closed is gone within `CLOSE_SECONDS`, also where
  its caller reads nothing.
- A slow caller never blocks another one (`kubekit.connections`): of too many connections the one that has waited for
  its caller for longest is closed, from the handshake of TLS to the answer's last byte.
- Bodies and answers in transfer take bounded memory, each class its own: bodies up to `LONGEST_BODY`, longer ones (two
  of the longest together), and answers. Of too many bytes the transfer that began first is given up.
- With `callers_only` nothing of a body is read before the caller has shown a certificate.
- An invalid request gets a status and the connection is closed, so its rest is never taken for the next request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Final

import msgspec

from kubekit.connections import Connections, Transfers, listen
from kubekit.errors import Retryable
from kubekit.kube.exposition import CONTENT_TYPE, MetricFamily, exposition

log = logging.getLogger("kubekit.http")

LONGEST_HEAD: Final = 16 << 10
LONGEST_BODY: Final = 1 << 20
READ_SECONDS: Final = 120.0  # also how long an idle connection stays open; scrapes come every 15 to 60 s
BODY_SECONDS: Final = 10.0
LINGER_SECONDS: Final = 1.0
CLOSE_SECONDS: Final = 10.0  # until a closed connection whose answer is not read is cut off
HANDSHAKE_SECONDS: Final = 10.0  # of TLS
MOST_CONNECTIONS: Final = 400  # each takes up to 0.5 MB with TLS; the admission server has 512 MiB
MOST_BODIES: Final = 16 << 20  # bytes of all bodies up to LONGEST_BODY
MOST_ANSWERS: Final = 32 << 20  # bytes of all answers that callers have not read yet
_BUFFER: Final = 64 << 10


class HttpAnswer(msgspec.Struct, frozen=True):
    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


def metrics_answer(families: Iterable[MetricFamily]) -> HttpAnswer:
    """Answer a scrape."""
    return HttpAnswer(exposition(families), content_type=CONTENT_TYPE)


Handler = Callable[[], Awaitable[HttpAnswer]]
PostHandler = Callable[[bytes], Awaitable[HttpAnswer]]


def component_paths(families: Callable[[], Iterable[MetricFamily]], synced: Callable[[], bool]) -> dict[str, Handler]:
    """Return `/metrics`, `/healthz` and `/readyz` of a component that leads by a lease and works on its watches."""

    async def metrics() -> HttpAnswer:
        return metrics_answer(families())

    async def healthy() -> HttpAnswer:
        return HttpAnswer(b"ok\n")

    async def ready() -> HttpAnswer:
        if synced():
            return HttpAnswer(b"ok\n")
        return HttpAnswer(b"waiting for the lease or the first list\n", HTTPStatus.SERVICE_UNAVAILABLE)

    return {"/metrics": metrics, "/healthz": healthy, "/readyz": ready}


class _Served(msgspec.Struct):
    """The served paths, and the connections with what is in transfer on them."""

    paths: Mapping[str, Handler]
    posts: Mapping[str, PostHandler]
    private: Mapping[str, Handler]
    longest_body: int
    callers_only: bool
    tls: ssl.SSLContext | None
    connections: Connections
    bodies: Transfers
    large_bodies: Transfers
    answers: Transfers


@contextlib.asynccontextmanager
async def serving(
    paths: Mapping[str, Handler],
    address: str,
    port: int,
    *,
    posts: Mapping[str, PostHandler] | None = None,
    private: Mapping[str, Handler] | None = None,
    longest_body: int = LONGEST_BODY,
    most_connections: int = MOST_CONNECTIONS,
    tls: ssl.SSLContext | None = None,
    callers_only: bool = False,
) -> AsyncIterator[int]:
    """Serve `paths` while in the context; yields the port (another than `port` only if that is 0).

    Args:
        address: where to listen, "" for all addresses.
        posts: paths that take a POST, each with the function that gets its body.
        private: paths for callers that have shown a certificate, in the place of those of the same name in `paths`.
        longest_body: bytes; a longer one is answered 413.
        tls: HTTPS only.
        callers_only: with TLS that asks callers for certificates: a POST without one is answered 401.

    Raises:
        Retryable: the port is in use, or the address is not this machine's (yet).
    """
    connections = Connections(most_connections)
    served = _Served(
        paths,
        posts or {},
        private or {},
        longest_body,
        callers_only,
        tls,
        connections,
        Transfers(MOST_BODIES),
        Transfers(2 * longest_body),
        Transfers(MOST_ANSWERS),
    )
    try:
        listener = listen(address, port)
    except OSError as error:
        raise Retryable(
            f"cannot listen on port {port}: {error.strerror or error}",
            where=f"{address or '*'}:{port}",
            cure=f"see who has it (ss -ltnp sport = :{port}), or give another --port",
        ) from error
    with listener:
        accepting = asyncio.create_task(connections.accept(listener, lambda accepted: _connection(served, accepted)))
        try:
            yield listener.getsockname()[1]
        finally:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
            await connections.end()


async def _connection(served: _Served, accepted: socket.socket) -> None:
    """Answer the requests of a connection until either side ends it."""
    writer: asyncio.StreamWriter | None = None
    try:
        with served.connections.waiting():
            reader, writer = await _opened(served, accepted)
        while await _one(served, reader, writer):
            pass
        with served.connections.waiting():
            await _close(reader, writer)
    except OSError:
        pass  # the client disconnected, sent nothing, or showed no valid certificate: there is no one to answer
    finally:
        # NB: a transport that is only closed lives until its caller has read what is left.
        if writer is None:
            accepted.close()
        else:
            writer.transport.abort()


async def _opened(served: _Served, accepted: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return the streams of a connection, after the handshake of TLS. Raises OSError where the handshake fails."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_BUFFER)
    protocol = asyncio.StreamReaderProtocol(reader)
    handshake = None if served.tls is None else HANDSHAKE_SECONDS
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, accepted, ssl=served.tls, ssl_handshake_timeout=handshake
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close a connection once its caller has the answer. Raises TimeoutError where the caller reads nothing."""
    if writer.can_write_eof():
        writer.write_eof()
        # NB: closing with something unread resets the connection, and the client may lose the answer.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while await reader.read(_BUFFER):
                    pass
    writer.close()
    async with asyncio.timeout(CLOSE_SECONDS):
        await writer.wait_closed()


async def _one(served: _Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer one request; whether another may follow."""
    try:
        with served.connections.waiting():
            async with asyncio.timeout(READ_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return False
    except asyncio.LimitOverrunError:
        head = b" " * (LONGEST_HEAD + 1)
    if len(head) > LONGEST_HEAD:
        await _send(served, writer, _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), close=True)
        return False
    line, _, rest = head.partition(b"\r\n")
    words = line.decode("latin-1").split(" ")
    headers = {
        name.strip().lower(): value.strip().lower()
        for name, colon, value in (header.partition(b":") for header in rest.split(b"\r\n"))
        if colon
    }
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        await _send(served, writer, _plain(HTTPStatus.BAD_REQUEST), close=True)
        return False
    method, target, version = words
    close = headers.get(b"connection") == b"close" or (
        version == "HTTP/1.0" and headers.get(b"connection") != b"keep-alive"
    )
    path = target.partition("?")[0]
    known = _is_known(writer)
    if method == "POST" and path in served.posts:
        if served.callers_only and not known:
            answer, whole = _plain(HTTPStatus.UNAUTHORIZED), False
        else:
            answer, whole = await _posted(served, path, headers, reader, writer)
        close |= not whole
    else:
        # A body would be read as the next request.
        close |= b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        handler = (served.private.get(path) if known else None) or served.paths.get(path)
        if handler is not None and method in ("GET", "HEAD"):
            answer = await _handled(handler(), target)
        elif method not in ("GET", "HEAD", "POST") or handler is not None or path in served.posts:
            answer = _plain(HTTPStatus.METHOD_NOT_ALLOWED)
        else:
            answer = _plain(HTTPStatus.NOT_FOUND)
    await _send(served, writer, answer, close=close, head_only=method == "HEAD")
    return not close


async def _posted(
    served: _Served,
    path: str,
    headers: Mapping[bytes, bytes],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> tuple[HttpAnswer, bool]:
    """The answer to a POST, and whether its body was read whole."""
    given = headers.get(b"content-length", b"")
    if b"transfer-encoding" in headers or not given.isdigit():
        return _plain(HTTPStatus.LENGTH_REQUIRED), False
    length = int(given) if len(given) < 20 else 1 << 64
    if length > served.longest_body:
        return _plain(HTTPStatus.REQUEST_ENTITY_TOO_LARGE), False
    if headers.get(b"expect") == b"100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        body = await _body(served, length, reader)
    except asyncio.IncompleteReadError:
        return _plain(HTTPStatus.BAD_REQUEST), False
    except TimeoutError:
        return _plain(HTTPStatus.REQUEST_TIMEOUT), False
    return await _handled(served.posts[path](body), path), True


async def _body(served: _Served, length: int, reader: asyncio.StreamReader) -> bytes:
    """Read a body. Raises IncompleteReadError, and TimeoutError also for one that gave way to others."""
    with served.connections.waiting():
        async with asyncio.timeout(BODY_SECONDS) as transfer:
            if length <= _BUFFER:  # within what a connection may hold anyway
                return await reader.readexactly(length)
            # Small ones pass, whatever large ones are in transfer.
            bodies = served.bodies if length <= LONGEST_BODY else served.large_bodies
            body = bytearray()
            try:
                while len(body) < length:
                    chunk = await reader.read(length - len(body))
                    if not chunk:
                        raise asyncio.IncompleteReadError(bytes(body), length)
                    body += chunk
                    bodies.count(transfer, len(body))
            finally:
                bodies.done(transfer)
            return bytes(body)


def _is_known(writer: asyncio.StreamWriter) -> bool:
    """Return whether the caller has shown a certificate, which the handshake has verified."""
    tls: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
    return tls is not None and bool(tls.getpeercert(binary_form=True))


async def _handled(answer: Awaitable[HttpAnswer], target: str) -> HttpAnswer:
    try:
        return await answer
    except Exception:
        # One request's failure is not the server's end; the trace says what to repair.
        log.exception("request failed path=%s", target)
        return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)


def _plain(status: HTTPStatus) -> HttpAnswer:
    return HttpAnswer(f"{status.value} {status.phrase}\n".encode(), status)


async def _send(
    served: _Served, writer: asyncio.StreamWriter, answer: HttpAnswer, *, close: bool, head_only: bool = False
) -> None:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n"
        + ("Connection: close\r\n" if close else "")
        + "\r\n"
    )
    writer.write(head.encode("latin-1") + (b"" if head_only else answer.body))
    with served.connections.waiting():
        async with asyncio.timeout(READ_SECONDS) as transfer:
            served.answers.count(transfer, writer.transport.get_write_buffer_size())
            try:
                await writer.drain()
            finally:
                served.answers.done(transfer)
