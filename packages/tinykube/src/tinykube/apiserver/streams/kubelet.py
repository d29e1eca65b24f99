"""The API server's calls to a node's kubelet, over plain HTTP on loopback: logs, other documents, and the WebSockets of
exec, attach and port-forward."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from typing import Final

from tinykube.apiserver.failure import ApiFailure, bad_request
from tinykube.apiserver.hooks import Object
from tinykube.kubelet.tokens import kubelet_token
from tinykube.kubelet.websocket import WebSocket

_CONNECT_SECONDS: Final = 10
_HEAD_SECONDS: Final = 30.0  # until the head of an answer is there, and then the text of a refusal
_PIECE_BYTES: Final = 65536
MOST_BYTES: Final = 16 << 20  # of a page that is read whole; use of 250 pods has 300 KB


class KubeletClient:
    """One node's kubelet. Raises ApiFailure: the kubelet's own refusals, or 500 when it is not there or no kubelet.

    Any program may listen at the address, so each wait for it ends: after `patience_s` seconds for the head of an
    answer, and by the caller for what follows. A call that fails or is cancelled leaves no connection. It gets the
    token of its node alone, derived from `secret`.
    """

    def __init__(self, node: Object, secret: str, *, patience_s: float = _HEAD_SECONDS) -> None:
        status = node.get("status") or {}
        addresses = {a["type"]: a["address"] for a in reversed(status.get("addresses") or ())}
        self.node: str = node["metadata"]["name"]
        self.host: str = addresses.get("InternalIP", "")
        self.port: int = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port", 0)
        self._token = kubelet_token(secret, self.node)
        self._patience_s = patience_s

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not self.host or not self.port:
            raise ApiFailure(500, "InternalError", f"no address of the kubelet of node {self.node} is known")
        try:
            return await asyncio.wait_for(asyncio.open_connection(self.host, self.port), _CONNECT_SECONDS)
        except (OSError, TimeoutError) as problem:
            text = f"dial tcp {self.host}:{self.port}: {problem or 'timed out'}"
            raise ApiFailure(500, "InternalError", f"error dialing the kubelet of {self.node}: {text}") from problem

    async def _ask(
        self, target: str, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self._connect()
        lines = [f"GET {target} HTTP/1.1", f"Host: {self.host}:{self.port}", f"Authorization: Bearer {self._token}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        try:
            async with asyncio.timeout(self._patience_s):
                writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
                head = await reader.readuntil(b"\r\n\r\n")
            status, found = _read_head(head)
        except TimeoutError as problem:
            writer.close()
            what = f"the kubelet of {self.node} did not answer within {self._patience_s:g} s"
            raise ApiFailure(500, "InternalError", what) from problem
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as problem:
            writer.close()
            raise ApiFailure(500, "InternalError", f"the kubelet of {self.node} hung up: {problem}") from problem
        except ValueError as problem:
            writer.close()
            what = f"the kubelet of {self.node} does not answer as HTTP does: {problem}"
            raise ApiFailure(500, "InternalError", what) from problem
        except BaseException:  # cancelled, as by a caller's own timeout
            writer.close()
            raise
        return status, found, reader, writer

    async def logs(self, target: str) -> tuple[AsyncIterator[bytes], asyncio.StreamWriter]:
        """The pieces of a log, and what closes it."""
        status, headers, reader, writer = await self._ask(target, {})
        if status != 200:
            raise await self._refusal(status, reader, writer)
        chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        return (_chunks(reader) if chunked else _rest(reader)), writer

    async def page(self, target: str) -> tuple[int, str, AsyncIterator[bytes], asyncio.StreamWriter]:
        """Return status, media type and the pieces of any page, and what closes it."""
        status, headers, reader, writer = await self._ask(target, {})
        chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        kind = headers.get("content-type", "text/plain")
        return status, kind, (_chunks(reader) if chunked else _rest(reader)), writer

    async def text(self, target: str) -> str:
        """Return the text of a page, at most MOST_BYTES of it."""
        status, _, reader, writer = await self._ask(target, {})
        if status != 200:
            raise await self._refusal(status, reader, writer)
        try:
            return (await _at_most(reader, MOST_BYTES)).decode(errors="replace")
        finally:
            writer.close()

    async def stream(self, target: str, protocol: str) -> tuple[WebSocket, asyncio.StreamWriter]:
        """Return a WebSocket that speaks `protocol`, and what closes it."""
        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
            "Sec-WebSocket-Protocol": protocol,
        }
        status, _, reader, writer = await self._ask(target, upgrade)
        if status != 101:
            raise await self._refusal(status, reader, writer)
        return WebSocket(reader, writer), writer

    async def _refusal(self, status: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ApiFailure:
        text = ""
        try:
            async with asyncio.timeout(self._patience_s):
                text = (await reader.read(4096)).decode(errors="replace").strip()
        except OSError:
            pass  # it does not come in time, or not at all; the status says enough
        finally:
            writer.close()
        if status == 404:
            return ApiFailure(404, "NotFound", text)
        return bad_request(text) if status == 400 else ApiFailure(500, "InternalError", f"{text} ({status})")


def _read_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Return status and headers, their names in small letters. Raises ValueError without a status of HTTP."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split()
    if len(words) < 2 or not words[1].isdecimal() or not 100 <= int(words[1]) < 600:
        raise ValueError(f"no status in {first[:80]!r}")
    found = dict(line.split(": ", 1) for line in lines if ": " in line)
    return int(words[1]), {name.lower(): value for name, value in found.items()}


async def _at_most(reader: asyncio.StreamReader, most: int) -> bytes:
    data = bytearray()
    while len(data) < most and (piece := await reader.read(_PIECE_BYTES)):
        data += piece
    return bytes(data[:most])


async def _rest(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while data := await reader.read(_PIECE_BYTES):
        yield data


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield what chunks bring, as it comes: a chunk may claim any size. Raises IncompleteReadError, ValueError."""
    while left := _chunk_size(await reader.readline()):
        while left:
            piece = await reader.read(min(left, _PIECE_BYTES))
            if not piece:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(piece)
            yield piece
        await reader.readexactly(2)


def _chunk_size(line: bytes) -> int:
    """Return a chunk's size in bytes. Raises IncompleteReadError without a line, ValueError without a size."""
    if not line:
        raise asyncio.IncompleteReadError(b"", None)
    size = int(line, 16)
    if size < 0:
        raise ValueError(f"a chunk of {size} bytes")
    return size
