"""The little of gRPC that a node's sockets need: calls to the kubelet; `kubekit.rpc_server` answers its own.

HTTP/2 is the h2 package; what is here is gRPC's framing on top of it. The whole grpc library is 16 MB of an operand's
memory for the same bytes.

Invariants:

- A call ends with its answer or with an RpcError, at the latest when its time is over; its connection is closed.
- A message of a peer takes `LONGEST` bytes of memory at most.

Source: gRPC, "gRPC over HTTP2"; the status codes are those of "Status codes and their use in gRPC".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError

from kubekit.errors import KubekitError
from kubekit.protocol.sockets import address

LONGEST: Final = 64 << 20  # bytes of a message; a kubelet with 1,000 busy pods sends some 2 MB
READ_SIZE: Final = 64 << 10
PREFIX: Final = 5  # a flag and the length before each message
CONTENT_TYPE: Final = ("content-type", "application/grpc")


class Status(IntEnum):
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(KubekitError):
    """A call that failed. `status` is the other side's, or UNAVAILABLE and DEADLINE_EXCEEDED when it gave none."""

    def __init__(self, status: Status, details: str, *, where: str = "") -> None:
        super().__init__(f"{status.name} {details}".rstrip(), where=where)
        self.status = status
        self.details = details


async def call(socket: Path, method: str, request: bytes, *, timeout: float) -> bytes:
    """One unary call on a connection of its own; `method` as `/package.Service/Name`. Raises RpcError.

    Args:
        timeout: seconds for all of it.
    """
    try:
        async with asyncio.timeout(timeout):
            with address(socket) as target:
                reader, writer = await asyncio.open_unix_connection(target.removeprefix("unix:"))
            try:
                return await _called(reader, writer, method, request, str(socket))
            finally:
                await closed(writer)
    except TimeoutError:
        raise RpcError(Status.DEADLINE_EXCEEDED, f"no answer within {timeout:g} s", where=str(socket)) from None
    except (OSError, ProtocolError) as error:
        raise RpcError(Status.UNAVAILABLE, str(error), where=str(socket)) from error


async def _called(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, request: bytes, where: str
) -> bytes:
    connection = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    connection.initiate_connection()
    stream = connection.get_next_available_stream_id()
    headers = [(":method", "POST"), (":scheme", "http"), (":authority", "localhost"), (":path", method)]
    connection.send_headers(stream, [*headers, ("te", "trailers"), CONTENT_TYPE])
    # The smallest window that a peer may start with is 64 KiB; requests of operands are hundreds of bytes.
    connection.send_data(stream, framed(request), end_stream=True)
    writer.write(connection.data_to_send())
    answer = bytearray()
    said: dict[str, str] = {}
    while data := await reader.read(READ_SIZE):
        for event in connection.receive_data(data):
            if isinstance(event, ResponseReceived | TrailersReceived):
                said |= {str(name): str(value) for name, value in event.headers or ()}
            elif isinstance(event, DataReceived):
                answer += event.data or b""
                take(connection, event)
                if len(answer) > LONGEST:
                    raise RpcError(Status.RESOURCE_EXHAUSTED, f"the answer is longer than {LONGEST} bytes", where=where)
            elif isinstance(event, StreamEnded):
                return _message(answer, said, where)
            elif isinstance(event, StreamReset | ConnectionTerminated):
                raise RpcError(Status.UNAVAILABLE, "the call was broken off", where=where)
        writer.write(connection.data_to_send())
    raise RpcError(Status.UNAVAILABLE, "the connection was closed", where=where)


def _message(answer: bytearray, said: Mapping[str, str], where: str) -> bytes:
    status = said.get("grpc-status", "")
    if status != "0":
        known = status.isdecimal() and int(status) in list(Status)
        details = unquote(said.get("grpc-message", "")) or f"HTTP status {said.get(':status', 'missing')}"
        raise RpcError(Status(int(status)) if known else Status.UNKNOWN, details, where=where)
    message = unframed(answer)
    if message is None:
        raise RpcError(Status.INTERNAL, "the answer is not one plain message", where=where)
    return message


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection at once, with what is not sent yet, and wait until its socket is."""
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def framed(message: bytes) -> bytes:
    """A message as it goes over the wire."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def unframed(data: bytes | bytearray) -> bytes | None:
    """The message of `framed` bytes; None for anything but one whole message without compression."""
    if len(data) < PREFIX or data[0] or len(data) != PREFIX + int.from_bytes(data[1:PREFIX], "big"):
        return None
    return bytes(data[PREFIX:])


def take(connection: H2Connection, event: DataReceived) -> None:
    """Let the peer send as much again."""
    if event.flow_controlled_length:
        connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
