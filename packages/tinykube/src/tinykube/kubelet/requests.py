"""Requests and answers of the kubelet's endpoint: their heads, options, and upgrades to other protocols."""

from __future__ import annotations

import asyncio
from typing import Final

from kubekit.errors import KubekitError
from tinykube.kubelet.websocket import WebSocket, accept_key

_REQUEST_SECONDS: Final = 30
_TLS_HANDSHAKE: Final = b"\x16"  # the first byte of a TLS connection (RFC 8446, 5.1)
Query = dict[str, list[str]]


class HttpProblem(KubekitError):
    """An answer that is not 200."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status = status


async def read_request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]]:
    """Return method, target and headers, their names in lower case. Raises HttpProblem, or what reading raises."""
    async with asyncio.timeout(_REQUEST_SECONDS):
        first_byte = await reader.readexactly(1)
        if first_byte == _TLS_HANDSHAKE:  # its end is not that of a request, and both sides would wait
            raise HttpProblem(400, "this port serves plain HTTP")
        head = first_byte + await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3:
        raise HttpProblem(400, "no HTTP request")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return words[0], words[1], headers


def write_head(writer: asyncio.StreamWriter, status: int, kind: str, length: int | None = None) -> None:
    """Write the head of an answer with a body of media type `kind`: of `length` bytes, in chunks where that is None."""
    reason = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}.get(status, "Error")
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    writer.write(f"HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\n{size}\r\nConnection: close\r\n\r\n".encode())


def write_answer(writer: asyncio.StreamWriter, status: int, kind: str, body: bytes) -> None:
    """Write a whole answer."""
    write_head(writer, status, kind, len(body))
    writer.write(body)


def flag(query: Query, name: str) -> bool:
    """Return whether an option is on; one without a value is."""
    return query.get(name, ["false"])[-1].lower() in ("true", "1", "")


def require_websocket(headers: dict[str, str], what: str, protocol: str) -> None:
    """Raise HttpProblem unless a request asks for a WebSocket that speaks `protocol`."""
    if headers.get("upgrade", "").lower() != "websocket" or "sec-websocket-key" not in headers:
        raise HttpProblem(400, f"{what} needs a WebSocket")
    if protocol not in [one.strip() for one in headers.get("sec-websocket-protocol", "").split(",")]:
        raise HttpProblem(400, f"{what} needs the subprotocol {protocol}")


def to_websocket(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: dict[str, str], protocol: str
) -> WebSocket:
    """Accept what `require_websocket` has let pass."""
    key = accept_key(headers["sec-websocket-key"])
    accept_upgrade(writer, {"Upgrade": "websocket", "Sec-WebSocket-Accept": key, "Sec-WebSocket-Protocol": protocol})
    return WebSocket(reader, writer)


def accept_upgrade(writer: asyncio.StreamWriter, headers: dict[str, str]) -> None:
    """Answer 101; the connection then speaks the protocol of the header Upgrade."""
    lines = ["HTTP/1.1 101 Switching Protocols", "Connection: Upgrade"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
