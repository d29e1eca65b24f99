"""The socket of a simulated runtime: there while the runtime runs, and answering what a health check asks.

A client learns our process id from the socket, and may send SIGHUP. CRI's Version is answered as gRPC does it
(RFC 9113, grpc.io "gRPC over HTTP2"), docker's `/_ping` and `/info` as the Engine API does; nothing else is, since the
kubelet in this process needs no socket to reach its runtime.
"""

from __future__ import annotations

import json
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tinykube.kubelet.runtimes.listener import UnixListener

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING = 0x0, 0x1, 0x4, 0x6
_END_STREAM, _END_HEADERS, _ACK = 0x1, 0x4, 0x1
_STATUS_200: Final = b"\x88"  # the eighth entry of HPACK's static table


class RuntimeEndpoint:
    """A unix socket at `path` that can be opened and closed any number of times; inside of a running event loop.

    Args:
        name, version: the runtime's; docker is asked by HTTP, the others by CRI.
        info: what docker answers to `/info`.
    """

    def __init__(
        self, path: Path, name: str, version: str, info: Callable[[], dict[str, object]] | None = None
    ) -> None:
        self._info = info
        self._name = name
        self._version = version
        self._listener = UnixListener(path, self._serve)

    def open(self) -> None:
        """Listen; at once, so that who connects from now on is answered."""
        self._listener.open()

    def close(self) -> None:
        """Listen no more, and hang up. The socket's file stays, as after a crash."""
        self._listener.close()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            if self._name == "docker":
                await _answer_http(reader, writer, self._version, self._info)
            else:
                await _answer_version(reader, writer, self._name, self._version)
        except (OSError, EOFError):
            pass  # they had only wanted to know who we are
        finally:
            writer.close()


async def _answer_http(
    reader: StreamReader, writer: StreamWriter, version: str, info: Callable[[], dict[str, object]] | None
) -> None:
    words = (await reader.readuntil(b"\r\n\r\n")).split()
    path = words[1] if len(words) > 1 else b""
    if path == b"/_ping":
        status, body = b"200 OK", b"OK"
    elif path == b"/info" and info is not None:
        status, body = b"200 OK", json.dumps(info()).encode()
    else:
        status, body = b"404 Not Found", b'{"message":"page not found"}'
    head = b"HTTP/1.1 %s\r\nServer: Docker/%s (linux)\r\n" % (status, version.encode())
    writer.write(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    await writer.drain()


async def _answer_version(reader: StreamReader, writer: StreamWriter, name: str, version: str) -> None:
    if await reader.readexactly(len(_PREFACE)) != _PREFACE:
        return
    writer.write(_frame(_SETTINGS, 0, 0))
    # VersionResponse of runtime/v1/api.proto: version, runtime_name, runtime_version, runtime_api_version
    fields = ("0.1.0", name, version, "v1")
    message = b"".join(bytes((index << 3 | 2, len(text))) + text.encode() for index, text in enumerate(fields, 1))
    while True:
        head = await reader.readexactly(9)
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
        payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            writer.write(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            told = _STATUS_200 + _field("content-type", "application/grpc")
            writer.write(_frame(_HEADERS, _END_HEADERS, stream, told))
            writer.write(_frame(_DATA, 0, stream, b"\0" + len(message).to_bytes(4, "big") + message))
            writer.write(_frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, _field("grpc-status", "0")))
            await writer.drain()


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _field(name: str, value: str) -> bytes:
    """A literal header field with a new name, not indexed (RFC 7541, 6.2.2)."""
    return bytes((0, len(name))) + name.encode() + bytes((len(value),)) + value.encode()
