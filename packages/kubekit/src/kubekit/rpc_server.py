"""Answers gRPC calls over a unix socket, unary and streaming ones; the other half of `kubekit.rpc`.

Invariants:

- A served call ends when its caller goes away. An exception of a method becomes the call's status.
- A request of a caller takes `LONGEST` bytes of memory at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from google.protobuf.message import DecodeError
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, RequestReceived, StreamEnded, StreamReset, WindowUpdated
from h2.exceptions import ProtocolError

from kubekit.errors import InvalidInput, KubekitError
from kubekit.protocol.sockets import address
from kubekit.rpc import CONTENT_TYPE, LONGEST, READ_SIZE, Status, closed, framed, take, unframed

log = logging.getLogger("kubekit.rpc")

Method = Callable[[bytes], AsyncIterator[bytes]]
"""Answers a request (its message) with messages; what it raises is the status: InvalidInput is INVALID_ARGUMENT, other
errors of ours FAILED_PRECONDITION."""


@contextlib.asynccontextmanager
async def serving(methods: Mapping[str, Method], path: Path) -> AsyncIterator[None]:
    """Answer calls of `methods` at the socket `path` while in the context. Raises OSError when it cannot be opened.

    NB: not asyncio's own server, which goes on with connections that it was just accepting when it is closed.
    """
    loop = asyncio.get_running_loop()
    connections: dict[asyncio.Task[None], socket.socket] = {}

    def accept() -> None:
        try:
            client, _ = listener.accept()
        except OSError:
            return  # the caller is gone already
        task = asyncio.create_task(_connected(methods, client))
        connections[task] = client
        task.add_done_callback(lambda task: connections.pop(task, None))

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.setblocking(False)
        with address(path) as target:
            listener.bind(target.removeprefix("unix:"))
        listener.listen()
        loop.add_reader(listener, accept)
        try:
            yield
        finally:
            loop.remove_reader(listener)
            left = dict(connections)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            for client in left.values():
                client.close()  # of a task that had not begun


async def _connected(methods: Mapping[str, Method], client: socket.socket) -> None:
    client.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=client)
    try:
        await _Connection(methods, reader, writer).run()
    finally:
        await closed(writer)


class _Connection:
    """One caller's connection; each of its calls is a task."""

    def __init__(
        self, methods: Mapping[str, Method], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._methods = methods
        self._reader = reader
        self._writer = writer
        self._http = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._asked: dict[int, tuple[str, bytearray]] = {}
        self._answers: dict[int, asyncio.Task[None]] = {}
        self._window = asyncio.Event()

    async def run(self) -> None:
        self._http.initiate_connection()
        try:
            self._flush()
            while data := await self._reader.read(READ_SIZE):
                for event in self._http.receive_data(data):
                    self._heard(event)
                self._flush()
        except (ConnectionError, ProtocolError, UnicodeDecodeError) as error:  # of a header that is no UTF-8
            log.debug("connection of a caller ended: %s", error)
            self._flush()  # the reason, for the other side
        finally:
            for task in self._answers.values():
                task.cancel()
            await asyncio.gather(*self._answers.values(), return_exceptions=True)

    def _heard(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            headers = {str(name): str(value) for name, value in event.headers or ()}
            self._asked[event.stream_id] = (headers.get(":path", ""), bytearray())
        elif isinstance(event, DataReceived):
            if event.stream_id in self._asked:
                body = self._asked[event.stream_id][1]
                body += event.data or b""
                if len(body) > LONGEST:
                    raise ConnectionError("a request is too long")
            take(self._http, event)
        elif isinstance(event, StreamEnded) and event.stream_id in self._asked:
            path, body = self._asked.pop(event.stream_id)
            task = asyncio.create_task(self._answer(event.stream_id, path, bytes(body)))
            self._answers[event.stream_id] = task
            task.add_done_callback(functools.partial(self._answered, event.stream_id))
        elif isinstance(event, StreamReset):
            self._asked.pop(event.stream_id, None)
            if event.stream_id in self._answers:
                self._answers[event.stream_id].cancel()
        elif isinstance(event, WindowUpdated):
            self._window.set()

    def _answered(self, stream: int, task: asyncio.Task[None]) -> None:
        self._answers.pop(stream, None)

    async def _answer(self, stream: int, path: str, body: bytes) -> None:
        status, details = Status.OK, ""
        self._http.send_headers(stream, [(":status", "200"), CONTENT_TYPE])
        try:
            method = self._methods.get(path)
            request = unframed(body)
            if method is None:
                status, details = Status.UNIMPLEMENTED, f"there is no {path}"
            elif request is None:
                status, details = Status.INVALID_ARGUMENT, "the request is not one plain message"
            else:
                async for message in method(request):
                    await self._send(stream, framed(message))
        except DecodeError as error:
            status, details = Status.INVALID_ARGUMENT, f"the request is no message: {error}"
        except KubekitError as error:
            status = Status.INVALID_ARGUMENT if isinstance(error, InvalidInput) else Status.FAILED_PRECONDITION
            details = str(error)
        except (ConnectionError, ProtocolError):
            return  # the client has disconnected
        except Exception as error:
            log.exception("call failed path=%s", path)
            status, details = Status.INTERNAL, f"{type(error).__name__}: {error}"
        trailers = [("grpc-status", str(status.value))]
        if details:
            trailers.append(("grpc-message", quote(details, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")))
        with contextlib.suppress(ConnectionError, ProtocolError):
            self._http.send_headers(stream, trailers, end_stream=True)
            self._flush()

    async def _send(self, stream: int, data: bytes) -> None:
        while data:
            room = min(self._http.local_flow_control_window(stream), self._http.max_outbound_frame_size)
            if room <= 0:
                self._window.clear()
                await self._window.wait()
                continue
            self._http.send_data(stream, data[:room])
            data = data[room:]
            self._flush()
            await self._writer.drain()

    def _flush(self) -> None:
        if data := self._http.data_to_send():
            self._writer.write(data)
