"""The kubelet's own HTTP endpoint: logs and exec, for the API server to proxy to.

On loopback, one request a connection: each is a stream. The embedded API server asks by plain HTTP, with a bearer token
that only it and the kubelets of one cluster know. A real one asks by HTTPS and has a client certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from kubekit.errors import KubekitError
from tinykube.kubelet import execute
from tinykube.kubelet.logs import Options, read_log
from tinykube.kubelet.websocket import WebSocket, accept_key

log = logging.getLogger("tinykube.kubelet")

_FOLLOW_SECONDS: Final = 0.1
Query = dict[str, list[str]]


class HttpProblem(KubekitError):
    """An answer that is not 200."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status = status


class LogFile(msgspec.Struct, frozen=True):
    """The log of a container, and whether it may still grow."""

    path: Path
    running: Callable[[], bool]


class KubeletBackend(msgspec.Struct, frozen=True):
    """The endpoint's interface to its kubelet. Both raise HttpProblem for what is not there."""

    log_file: Callable[[str, str, str, bool], LogFile]  # namespace, pod, container, previous
    exec_command: Callable[[str, str, str, tuple[str, ...], bool], list[str]]
    pods: Callable[[], bytes]
    now: Callable[[], float]


class CallerCertificate(msgspec.Struct, frozen=True):
    """The caller that is answered: it has a certificate that `context` verifies, with the common name `name`."""

    context: ssl.SSLContext
    name: str


class KubeletServer:
    """Listens on `host`; `port` 0 takes a free one. An empty token asks for none (tests). With `caller` it serves HTTPS
    and asks for that certificate instead of a token.
    """

    def __init__(self, backend: KubeletBackend, token: str, caller: CallerCertificate | None = None) -> None:
        self._backend = backend
        self._token = token
        self._caller = caller
        self._server: asyncio.Server | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Returns the port."""
        self._server = await asyncio.start_server(
            self._connection, host, port, ssl=self._caller.context if self._caller is not None else None
        )
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            method, target, headers = await _request(reader)
            await self._answer(method, target, headers, reader, writer)
        except HttpProblem as problem:
            _head(writer, problem.status, "text/plain")
            writer.write(problem.what.encode())
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, TimeoutError):
            pass  # a client that does not finish its request, or went away
        except Exception:
            log.exception("a request to the kubelet failed")
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(
        self,
        method: str,
        target: str,
        headers: dict[str, str],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        url = urlsplit(target)
        if url.path == "/healthz":
            _head(writer, 200, "text/plain")
            writer.write(b"ok")
            return
        if not self._is_allowed(headers, writer):
            raise HttpProblem(401, "Unauthorized")
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        query = parse_qs(url.query, keep_blank_values=True)
        if parts == ["pods"]:
            _head(writer, 200, "application/json")
            writer.write(self._backend.pods())
        elif parts[0] == "containerLogs" and len(parts) == 4:
            await self._logs(parts, query, writer)
        elif parts[0] == "exec" and len(parts) == 4:
            await self._exec(parts, query, headers, reader, writer)
        else:
            raise HttpProblem(404, "404 page not found")

    def _is_allowed(self, headers: dict[str, str], writer: asyncio.StreamWriter) -> bool:
        """Return whether the caller is the API server of this kubelet's cluster."""
        if self._caller is not None:
            subject = (writer.get_extra_info("peercert") or {}).get("subject", ())
            return ("commonName", self._caller.name) in {field for fields in subject for field in fields}
        given = headers.get("authorization", "").removeprefix("Bearer ")
        return not self._token or hmac.compare_digest(given.encode(), self._token.encode())

    async def _logs(self, parts: list[str], query: Query, writer: asyncio.StreamWriter) -> None:
        options = log_options(query, self._backend.now())
        file = self._backend.log_file(parts[1], parts[2], parts[3], _flag(query, "previous"))
        _head(writer, 200, "text/plain", chunked=True)
        await writer.drain()
        async for chunk in read_log(file.path, options, running=file.running, changed=_ticks):
            writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async def _exec(
        self,
        parts: list[str],
        query: Query,
        headers: dict[str, str],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if headers.get("upgrade", "").lower() != "websocket" or "sec-websocket-key" not in headers:
            raise HttpProblem(400, "exec needs a WebSocket")
        offered = [p.strip() for p in headers.get("sec-websocket-protocol", "").split(",")]
        if execute.PROTOCOL not in offered:
            raise HttpProblem(400, f"exec needs the subprotocol {execute.PROTOCOL}")
        tty = _flag(query, "tty")
        command = self._backend.exec_command(parts[1], parts[2], parts[3], tuple(query.get("command", [])), tty)
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            + f"Sec-WebSocket-Accept: {accept_key(headers['sec-websocket-key'])}\r\n".encode()
            + f"Sec-WebSocket-Protocol: {execute.PROTOCOL}\r\n\r\n".encode()
        )
        await execute.serve_exec(
            WebSocket(reader, writer), command, stdin=_flag(query, "stdin"), stderr=_flag(query, "stderr"), tty=tty
        )


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]]:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
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


def _head(writer: asyncio.StreamWriter, status: int, kind: str, *, chunked: bool = False) -> None:
    reason = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}.get(status, "Error")
    length = "Transfer-Encoding: chunked\r\n" if chunked else ""
    writer.write(f"HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\n{length}Connection: close\r\n\r\n".encode())


def _flag(query: Query, name: str) -> bool:
    return query.get(name, ["false"])[-1].lower() in ("true", "1", "")


def log_options(query: Query, now: float) -> Options:
    """Read options from a query. Raises HttpProblem for an invalid number."""

    def number(name: str) -> int | None:
        text = query.get(name, [""])[-1]
        if not text:
            return None
        if not text.isdigit():
            raise HttpProblem(400, f"{name} must be a positive number, not {text!r}")
        return int(text)

    since = number("sinceSeconds")
    return Options(
        follow=_flag(query, "follow"),
        tail=number("tailLines"),
        timestamps=_flag(query, "timestamps"),
        since=None if since is None else now - since,
        limit_bytes=number("limitBytes"),
    )


async def _ticks() -> AsyncIterator[None]:
    """Wait until a followed log is read again. Only while a client follows."""
    while True:
        await asyncio.sleep(_FOLLOW_SECONDS)
        yield
