"""Checks the health and the version of a runtime: one request over its socket, CRI's Version or docker's `/_ping`.

gRPC is HTTP/2: the answer to a call that succeeds has a DATA frame, the answer to one that does not (an unknown service
above all) has headers only. That much needs no library, which would be a third of the operand's memory.

Formats: RFC 9113 (frames), RFC 7541 (literal header fields), grpc.io "gRPC over HTTP2", docs.docker.com Engine API.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable

import msgspec

from gpuplane.host import Host
from gpuplane.toolkit.places import RuntimeName, RuntimePaths
from kubekit.documents import DocumentError, decode_json

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7
_END_STREAM, _END_HEADERS, _ACK = 0x1, 0x4, 0x1
_METHOD = "/runtime.v1.RuntimeService/Version"
_FIELDS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", _METHOD),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
_EMPTY_MESSAGE = bytes(5)  # not compressed, no bytes
_PING_REQUEST = b"GET /_ping HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n"
_INFO_REQUEST = b"GET /info HTTP/1.0\r\nHost: docker\r\n\r\n"
_SILENCE = 2.0  # seconds
_LARGEST = 1 << 20  # bytes of a frame that is still taken for one


class Info(msgspec.Struct, frozen=True, rename="pascal"):
    """The part of docker's `/info` that is read: the runtimes that it knows, by name, and the one without a name."""

    runtimes: dict[str, msgspec.Raw]
    default_runtime: str = ""


def question(place: RuntimePaths) -> str:
    """Return the health check's question, in words for people."""
    return "/_ping" if place.runtime is RuntimeName.DOCKER else "CRI"


async def answers(host: Host, place: RuntimePaths) -> bool:
    """Return whether the runtime answers. False for anything else than a yes, also for silence."""
    return await _ask(host, place, _ping if place.runtime is RuntimeName.DOCKER else _version) is not None


async def release(host: Host, place: RuntimePaths) -> str:
    """The version of the runtime that answers, such as `1.7.28`; "" when none does."""
    if place.runtime is RuntimeName.DOCKER:
        head = await _ask(host, place, _ping) or b""
        found = re.search(rb"^Server: Docker/(\S+)", head, re.MULTILINE | re.IGNORECASE)
        return found.group(1).decode(errors="replace") if found else ""
    return _third_field(await _ask(host, place, _version) or b"").lstrip("v")


async def info(host: Host, place: RuntimePaths) -> Info | None:
    """Return docker's answer about its runtimes; None without an answer."""

    async def ask(reader: StreamReader, writer: StreamWriter) -> bytes | None:
        writer.write(_INFO_REQUEST)  # HTTP/1.0: the answer is one piece, and ends with the connection
        return await reader.read() if await _head(reader) is not None else None

    answer = await _ask(host, place, ask)
    try:
        return decode_json(answer or b"", Info)
    except DocumentError:
        return None


async def _ask(
    host: Host, place: RuntimePaths, question: Callable[[StreamReader, StreamWriter], Awaitable[bytes | None]]
) -> bytes | None:
    """The runtime's answer; None for a no, and for silence."""
    client = host.connect(place.socket, timeout=_SILENCE)
    if client is None:
        return None
    client.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=client)
    try:
        async with asyncio.timeout(_SILENCE):
            return await question(reader, writer)
    except (OSError, EOFError, ValueError, TimeoutError):
        return None
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _ping(reader: StreamReader, writer: StreamWriter) -> bytes | None:
    writer.write(_PING_REQUEST)
    return await _head(reader)


async def _head(reader: StreamReader) -> bytes | None:
    """The head of an HTTP answer that is a yes."""
    head = await reader.readuntil(b"\r\n\r\n")
    words = head.split()
    return head if len(words) > 1 and words[0].startswith(b"HTTP/") and words[1] == b"200" else None


async def _version(reader: StreamReader, writer: StreamWriter) -> bytes | None:
    """The message VersionResponse."""
    # each field is a literal with a new name that is not indexed: a zero, the name, the value
    fields = b"".join(b"\0" + _string(name) + _string(value) for name, value in _FIELDS)
    writer.write(_PREFACE + _frame(_SETTINGS, 0, 0) + _frame(_HEADERS, _END_HEADERS, 1, fields))
    writer.write(_frame(_DATA, _END_STREAM, 1, _EMPTY_MESSAGE))
    while True:
        head = await reader.readexactly(9)
        length, kind, flags, stream = int.from_bytes(head[:3], "big"), head[3], head[4], head[5:]
        if length > _LARGEST:
            return None  # no HTTP/2 at all
        payload = await reader.readexactly(length)
        ours = int.from_bytes(stream, "big") == 1
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            writer.write(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind == _GO_AWAY or (kind == _RESET and ours):
            return None
        elif kind == _DATA and ours and payload:
            return payload[len(_EMPTY_MESSAGE) :]
        elif kind in (_DATA, _HEADERS) and ours and flags & _END_STREAM:
            return None


def _third_field(message: bytes) -> str:
    """`runtime_version` of a VersionResponse, whose fields are four short strings (runtime/v1/api.proto)."""
    at = 0
    while at + 1 < len(message) and not message[at] & 0x80 and message[at + 1] < 0x80:
        number, size = message[at] >> 3, message[at + 1]
        if number == 3:
            return message[at + 2 : at + 2 + size].decode(errors="replace")
        at += 2 + size
    return ""


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _string(text: str) -> bytes:
    data = text.encode()
    assert len(data) < 0x7F, "one byte is enough for the length"
    return bytes([len(data)]) + data
