"""HTTP/1.1 as an API server's client needs it, on asyncio and httptools: pooled, buffered or streaming.

Why our own: a benchmark of 1,000 nodes makes 12,000 and more small writes on two cores, and every operand is a process
of its own. Measured (docs/components/kube.md): a general client costs several times the CPU of a request and several
times the import time.

Invariants:

- A connection carries one request at a time and returns to the pool only after a complete response.
- A body that ends early is an error, never a short body.
- An answer is what came up to its end. Bytes after it belong to no request: they end the connection and change nothing.
- A request is sent again by itself only when that cannot do harm: nothing was sent, or the caller says so.
- The peer cannot fill memory: a stream stops reading from the socket while its reader lags behind, and heads have an
  end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, cast

import httptools

from kubekit.kube.errors import Unreachable

_HIGH_WATER: Final = 1 << 20  # bytes buffered for a slow reader before the socket is paused
_LONGEST_HEAD: Final = 1 << 20  # bytes of a head, of trailers, or of anything else between two pieces of a body
_IDLE_LIMIT: Final = 64  # connections kept open for later
_REACH: Final = "start the API server there, or correct the address"
_CONNECT_SECONDS: Final = 10.0


class ClientResponse:
    """Status, headers (lower-case names) and, when buffered, the whole body.

    Headers of one name are one, with commas. `cookies` are the values of Set-Cookie, which have commas of their own
    (RFC 9110, 5.3).
    """

    __slots__ = ("body", "cookies", "headers", "status")

    def __init__(self, status: int, headers: dict[bytes, bytes], body: bytes, cookies: Sequence[bytes] = ()) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.cookies = cookies

    def pairs(self) -> list[tuple[bytes, bytes]]:
        """Return the headers as they are to be passed on, each cookie in one of its own."""
        others = [(name, value) for name, value in self.headers.items() if name != b"set-cookie"]
        return [*others, *((b"set-cookie", value) for value in self.cookies)]

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


class _Connection(asyncio.Protocol):
    """One socket. `exchange` is one request and its response; in streaming mode the body is drawn with `chunk`."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.transport: asyncio.Transport | None = None
        self.closed = False
        self.reusable = True
        self._aborted = False  # by this side
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parser: httptools.HttpResponseParser | None = None
        self._head: asyncio.Future[None] | None = None  # response head seen (stream) or all of it (buffered)
        self._more: asyncio.Future[None] | None = None  # the reader of a stream waits on this
        self._reset(False)

    def _reset(self, streaming: bool) -> None:
        self._streaming = streaming
        self._parser = httptools.HttpResponseParser(self)
        self._status = 0
        self._bodiless_bytes = 0  # received since the last piece of a body
        self.headers: dict[bytes, bytes] = {}
        self.cookies: list[bytes] = []
        self._fields: dict[bytes, list[bytes]] = {}  # the headers so far
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._paused = False
        self._complete = False
        self._answered = False
        self._head_complete = False
        self._failure: Unreachable | None = None

    # -- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # NB: uvloop's transports do not inherit from asyncio.Transport.
        self.transport = cast(asyncio.Transport, transport)
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            keep_alive(sock)

    def data_received(self, data: bytes) -> None:
        if self._complete:
            self.abort()
            return
        self._answered = True
        self._bodiless_bytes += len(data)
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail_unless_complete("the server switched protocols unasked")
        except httptools.HttpParserError as error:
            self._fail_unless_complete(f"the server does not speak HTTP: {error}")
        if self._bodiless_bytes > _LONGEST_HEAD and not self._complete:
            # NB: the parser holds a header until its line ends, so that only the bytes tell how long it is.
            self._fail(f"its answer has more than {_LONGEST_HEAD >> 20} MiB of headers")

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.reusable = False
        self._wake(self.lost)
        if self._complete:
            return
        if self._until_close() and exc is None and not self._aborted:
            self.on_message_complete()
            return
        stage = "in the middle of an answer" if self._answered else "before it answered"
        self._fail(f"the server closed the connection {stage}" + (f" ({exc})" if exc else ""))

    def _until_close(self) -> bool:
        """Return whether a body of unknown length has begun, which ends with the connection (RFC 9112, 6.3)."""
        known = b"content-length" in self.headers or b"transfer-encoding" in self.headers
        return self._head_complete and not known

    # -- httptools' callbacks --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            self.reusable = False  # no request asked for a second answer

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_complete:
            return  # a trailer, or of a second answer
        self._fields.setdefault(name.lower(), []).append(value)

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        assert self._parser is not None
        self._status = self._parser.get_status_code()
        self.headers = {name: b", ".join(values) for name, values in self._fields.items()}
        self.cookies = self._fields.get(b"set-cookie", [])
        self._fields = {}
        # NB: an answer of 1xx, such as Continue, comes before the answer that the caller waits for.
        self._head_complete = self._status >= 200
        if self._streaming and self._head_complete:
            self._wake(self._head)

    def on_body(self, body: bytes) -> None:
        if self._complete:
            return
        self._bodiless_bytes = 0
        self._chunks.append(body)
        if self._streaming:
            self._buffered += len(body)
            if self._buffered > _HIGH_WATER and not self._paused and self.transport is not None:
                self.transport.pause_reading()
                self._paused = True
            self._wake(self._more)

    def on_message_complete(self) -> None:
        if self._complete:
            return
        assert self._parser is not None
        if self._status < 200:
            self.headers, self.cookies = {}, []
            return
        self._complete = True
        if not self._parser.should_keep_alive():
            self.reusable = False
        self._wake(self._head)
        self._wake(self._more)

    @staticmethod
    def _wake(waiter: asyncio.Future[None] | None) -> None:
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _fail_unless_complete(self, what: str) -> None:
        if self._complete:
            self.abort()
        else:
            self._fail(what)

    def _fail(self, what: str) -> None:
        self.reusable = False
        self._complete = True
        self._failure = Unreachable(what, where=self.place)
        self._wake(self._head)
        self._wake(self._more)
        self.abort()

    # -- the pool's side -------------------------------------------------------------------------------------------

    async def exchange(self, request: bytes, *, streaming: bool) -> ClientResponse:
        """Sends `request`; returns after the whole response, or after its head when streaming."""
        assert self.transport is not None
        self._reset(streaming)
        self._head = asyncio.get_running_loop().create_future()
        try:
            self.transport.write(request)
            await self._head
        finally:
            self._head = None
        if self._failure is not None:
            raise self._failure
        if streaming:
            return ClientResponse(self._status, self.headers, b"", self.cookies)
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        return ClientResponse(self._status, self.headers, body, self.cookies)

    async def chunk(self) -> bytes | None:
        """The next piece of a streamed body; None at its end. Raises Unreachable when it was cut off."""
        while True:
            if self._chunks:
                data = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
                self._chunks.clear()
                self._buffered = 0
                if self._paused and self.transport is not None and not self.transport.is_closing():
                    self._paused = False
                    self.transport.resume_reading()
                return data
            if self._failure is not None:
                raise self._failure
            if self._complete:
                return None
            self._more = asyncio.get_running_loop().create_future()
            try:
                await self._more
            finally:
                self._more = None

    @property
    def answered(self) -> bool:
        return self._answered

    @property
    def complete(self) -> bool:
        return self._complete and self._failure is None

    def abort(self) -> None:
        self.reusable = False
        if self.transport is not None and not self.closed:
            self._aborted = True
            self.transport.abort()


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel find out within a minute that the other side of a TCP connection has gone without a word."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


async def read_whole(read: Callable[[], Awaitable[bytes | None]], most: int, place: str) -> bytes:
    """Return the whole body of a stream of `place`. Raises Unreachable for more than `most` bytes."""
    body = bytearray()
    while (part := await read()) is not None:
        body += part
        if len(body) > most:
            raise Unreachable(f"an answer of more than {most >> 20} MiB", where=place)
    return bytes(body)


class HttpPool:
    """Connections to one host.

    Args:
        tls: None for plain HTTP.
        server_name: the name that the certificate must carry, if not `host`.
        limit: requests in flight at most; further ones wait their turn. Streams are not counted.
    """

    def __init__(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None, server_name: str = "", limit: int = 64
    ) -> None:
        self.host = host
        self.port = port
        self.tls = tls
        self.place = f"{'https' if tls else 'http'}://{host}:{port}"
        self._server_name = server_name
        self._idle: deque[_Connection] = deque()
        self._turns = asyncio.Semaphore(limit)
        self._open: set[_Connection] = set()
        self._ending: set[_Connection] = set()  # aborted, and their transports have not ended yet
        self._connecting: set[asyncio.Task[_Connection]] = set()
        self._closed = False

    async def request(self, request: bytes, *, timeout: float, replay: bool) -> ClientResponse:
        """One request, buffered. `replay`: may be sent again when a kept connection turns out to be dead.

        Raises Unreachable. `timeout` is in seconds and covers connecting and the whole response.
        """
        async with self._turns:
            try:
                async with asyncio.timeout(timeout):
                    while True:
                        connection, fresh = await self._take()
                        try:
                            response = await connection.exchange(request, streaming=False)
                        except Unreachable:
                            # NB: a kept connection may have been closed by the server while our request was on its
                            # way; only then, and only harmless requests, go out once more.
                            if fresh or connection.answered or not replay:
                                raise
                            continue
                        finally:
                            self._give(connection)
                        return response
            except TimeoutError:
                raise Unreachable(f"no answer within {timeout:g} s", where=self.place) from None

    @contextlib.asynccontextmanager
    async def stream(
        self, request: bytes, *, timeout: float, idle: float, bodiless: bool = False
    ) -> AsyncIterator[tuple[ClientResponse, Callable[[], Awaitable[bytes | None]]]]:
        """One request whose body arrives over time: its head, and a function that gives the next piece or None.

        `timeout` covers the head; `idle` is how long the body may stay silent. Both raise Unreachable. An answer of
        400 and above comes with its body read (`response.body`), at most about 1 MiB of it. The answer to a request of
        HEAD is `bodiless`.
        """
        try:
            async with asyncio.timeout(timeout):
                connection, _ = await self._take(kept=False)
                try:
                    response = await connection.exchange(request, streaming=True)
                    if response.status >= 400 and not bodiless:
                        body = bytearray()
                        while len(body) < _HIGH_WATER and (part := await connection.chunk()) is not None:
                            body += part
                        response.body = bytes(body)
                except BaseException:
                    self._give(connection)
                    raise
        except TimeoutError:
            raise Unreachable(f"no answer within {timeout:g} s", where=self.place) from None

        async def read() -> bytes | None:
            try:
                async with asyncio.timeout(idle):
                    return await connection.chunk()
            except TimeoutError:
                raise Unreachable(f"silent for {idle:g} s", where=self.place) from None

        try:
            yield response, read
        finally:
            self._give(connection)

    async def _take(self, *, kept: bool = True) -> tuple[_Connection, bool]:
        """A connection, and whether it is a fresh one."""
        if self._closed:
            raise Unreachable("the client was closed", where=self.place, sent=False)
        while kept and self._idle:
            connection = self._idle.pop()
            if not connection.closed and connection.transport and not connection.transport.is_closing():
                return connection, False
            self._open.discard(connection)
        # NB: asyncio ends a connection whose opening is cancelled later than the cancelled task. So the opening is a
        # task of its own, and `aclose` waits for it.
        connecting = asyncio.create_task(self._connect())
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)
        try:
            connection = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(self._give_up_late)
            raise
        except TimeoutError:
            raise Unreachable("cannot connect: no answer", where=self.place, cure=_REACH, sent=False) from None
        except ssl.SSLCertVerificationError as error:
            raise Unreachable(
                f"its certificate is not trusted: {error.verify_message}",
                where=self.place,
                cure="check certificate-authority and the host name in the kubeconfig",
                sent=False,
            ) from error
        except OSError as error:
            # NB: asyncio puts the address into strerror; the place has it already.
            known = error.errno is not None and error.errno > 0
            why = os.strerror(error.errno).lower() if known and error.errno else (error.strerror or str(error))
            raise Unreachable(f"cannot connect: {why}", where=self.place, cure=_REACH, sent=False) from error
        self._open.add(connection)
        return connection, True

    async def _connect(self) -> _Connection:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self.place),
                self.host,
                self.port,
                ssl=self.tls,
                server_hostname=(self._server_name or self.host) if self.tls else None,
            )
        return connection

    def _give_up_late(self, connecting: asyncio.Task[_Connection]) -> None:
        if not connecting.cancelled() and connecting.exception() is None:
            self._give_up(connecting.result())

    def _give(self, connection: _Connection) -> None:
        usable = connection.reusable and connection.complete and not connection.closed
        if usable and not self._closed and len(self._idle) < _IDLE_LIMIT:
            self._idle.append(connection)
            return
        self._give_up(connection)

    def renew(self, tls: ssl.SSLContext) -> None:
        """Uses other TLS credentials from the next connection on."""
        self.tls = tls
        while self._idle:
            self._give_up(self._idle.pop())

    def _give_up(self, connection: _Connection) -> None:
        self._open.discard(connection)
        if not connection.lost.done():
            self._ending.add(connection)
            connection.lost.add_done_callback(lambda _: self._ending.discard(connection))
        connection.abort()

    async def aclose(self) -> None:
        """Closes every connection; requests in flight fail with Unreachable."""
        self._closed = True
        self._idle.clear()
        for connection in list(self._open):
            self._give_up(connection)
        # NB: a transport reports its end some turns of the loop later; who does not wait gets warnings of open sockets.
        if self._connecting:
            _, late = await asyncio.wait(self._connecting, timeout=1.0)
            for connecting in late:
                connecting.cancel()
        if self._ending:
            await asyncio.wait([connection.lost for connection in self._ending], timeout=1.0)
