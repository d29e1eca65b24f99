"""The little of HTTP that metrics and health need: GET and HEAD of a few paths, connections kept open.

A web framework would be two thirds of an operand's memory for two paths without parameters.

Invariants: a request is read to its end within `READ_SECONDS` and `LONGEST_HEAD` bytes or the connection is closed;
what cannot be understood gets a status and the connection is closed, so nothing is ever taken for the next request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Final

import msgspec

from gpuplane.errors import Retryable

log = logging.getLogger("gpuplane.http")

LONGEST_HEAD: Final = 16 << 10
READ_SECONDS: Final = 120.0  # also how long an idle connection is kept; scrapes come every 15 to 60 s


class Answer(msgspec.Struct, frozen=True):
    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


Handler = Callable[[], Awaitable[Answer]]


@contextlib.asynccontextmanager
async def serving(paths: Mapping[str, Handler], address: str, port: int) -> AsyncIterator[int]:
    """Serve `paths` while in the context; yields the port (another than `port` only if that is 0).

    Args:
        address: where to listen, "" for all addresses.

    Raises:
        Retryable: the port is in use, or the address is not this machine's (yet).
    """
    connections: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_connection(paths, reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    try:
        server = await asyncio.start_server(accept, address or None, port, limit=LONGEST_HEAD)
    except OSError as error:
        raise Retryable(
            f"cannot listen on port {port}: {error.strerror or error}",
            where=f"{address or '*'}:{port}",
            cure=f"see who has it (ss -ltnp sport = :{port}), or give another --port",
        ) from error
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _connection(paths: Mapping[str, Handler], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await _one(paths, reader, writer):
            pass
    except (ConnectionError, TimeoutError):
        pass  # the other side went away or said nothing: nobody is there to be told
    finally:
        writer.close()


async def _one(paths: Mapping[str, Handler], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer one request; whether another may follow."""
    try:
        async with asyncio.timeout(READ_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return False
    except asyncio.LimitOverrunError:
        await _send(writer, _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), close=True)
        return False
    line, _, rest = head.partition(b"\r\n")
    words = line.decode("latin-1").split(" ")
    headers = {
        name.strip().lower(): value.strip().lower()
        for name, colon, value in (header.partition(b":") for header in rest.split(b"\r\n"))
        if colon
    }
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        await _send(writer, _plain(HTTPStatus.BAD_REQUEST), close=True)
        return False
    method, target, version = words
    # A body would be read as the next request.
    close = (
        b"transfer-encoding" in headers
        or headers.get(b"content-length", b"0") != b"0"
        or headers.get(b"connection") == b"close"
        or (version == "HTTP/1.0" and headers.get(b"connection") != b"keep-alive")
    )
    handler = paths.get(target.partition("?")[0])
    if method not in ("GET", "HEAD"):
        answer = _plain(HTTPStatus.METHOD_NOT_ALLOWED)
    elif handler is None:
        answer = _plain(HTTPStatus.NOT_FOUND)
    else:
        answer = await _handled(handler, target)
    await _send(writer, answer, close=close, head_only=method == "HEAD")
    return not close


async def _handled(handler: Handler, target: str) -> Answer:
    try:
        return await handler()
    except Exception:
        # One request's failure is not the server's end; the trace says what to repair.
        log.exception("%s failed", target)
        return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)


def _plain(status: HTTPStatus) -> Answer:
    return Answer(f"{status.value} {status.phrase}\n".encode(), status)


async def _send(writer: asyncio.StreamWriter, answer: Answer, *, close: bool, head_only: bool = False) -> None:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n"
        + ("Connection: close\r\n" if close else "")
        + "\r\n"
    )
    writer.write(head.encode("latin-1") + (b"" if head_only else answer.body))
    async with asyncio.timeout(READ_SECONDS):
        await writer.drain()
