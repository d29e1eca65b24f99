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
from tinykube.kubelet.websocket import WebSocket

_CONNECT_SECONDS: Final = 10
MOST_BYTES: Final = 16 << 20  # of a page that is read whole; use of 250 pods has 300 KB


class KubeletClient:
    """One node's kubelet. Raises ApiFailure: the kubelet's own refusals, or 500 when it is not there."""

    def __init__(self, node: Object, token: str) -> None:
        status = node.get("status") or {}
        addresses = {a["type"]: a["address"] for a in reversed(status.get("addresses") or ())}
        self.node: str = node["metadata"]["name"]
        self.host: str = addresses.get("InternalIP", "")
        self.port: int = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port", 0)
        self._token = token

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
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as problem:
            writer.close()
            raise ApiFailure(500, "InternalError", f"the kubelet of {self.node} hung up: {problem}") from problem
        found = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
        return int(head[0].split()[1]), {name.lower(): value for name, value in found.items()}, reader, writer

    async def logs(self, target: str) -> tuple[AsyncIterator[bytes], asyncio.StreamWriter]:
        """The pieces of a log, and what closes it."""
        status, headers, reader, writer = await self._ask(target, {})
        if status != 200:
            raise await _refusal(status, reader, writer)
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
            raise await _refusal(status, reader, writer)
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
            raise await _refusal(status, reader, writer)
        return WebSocket(reader, writer), writer


async def _refusal(status: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ApiFailure:
    text = (await reader.read(4096)).decode(errors="replace").strip()
    writer.close()
    if status == 404:
        return ApiFailure(404, "NotFound", text)
    return bad_request(text) if status == 400 else ApiFailure(500, "InternalError", f"{text} ({status})")


async def _at_most(reader: asyncio.StreamReader, most: int) -> bytes:
    data = bytearray()
    while len(data) < most and (piece := await reader.read(65536)):
        data += piece
    return bytes(data[:most])


async def _rest(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while data := await reader.read(65536):
        yield data


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int(await reader.readline() or b"0", 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
