"""The kubelet's own HTTP endpoint: logs, exec, attach, port-forward and measured use, for the API server to proxy to.

On loopback, one request a connection: each is a stream. The embedded API server asks by plain HTTP, with a bearer token
that only it and this kubelet know. A real one asks by HTTPS and has a client certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from kubekit.api.durations import parse_time
from kubekit.kube.exposition import CONTENT_TYPE
from kubekit.kube.tasks import first_of
from tinykube.kubelet import execute, portforward
from tinykube.kubelet.attach import serve_attach
from tinykube.kubelet.hangup import hung_up
from tinykube.kubelet.logs import Options, read_log
from tinykube.kubelet.requests import (
    HttpProblem,
    Query,
    accept_upgrade,
    flag,
    read_request,
    require_websocket,
    to_websocket,
    write_answer,
    write_head,
)
from tinykube.kubelet.spdy import Session
from tinykube.kubelet.stats import NodeUsage
from tinykube.kubelet.stats.documents import resource_metrics, summary

log = logging.getLogger("tinykube.kubelet")

_FOLLOW_SECONDS: Final = 0.1


class LogFile(msgspec.Struct, frozen=True):
    """The log of a container, and whether it may still grow."""

    path: Path
    running: Callable[[], bool]


class KubeletBackend(msgspec.Struct, frozen=True):
    """The endpoint's interface to its kubelet. The first three raise HttpProblem for what is not there.

    Without `usage`, nothing is measured, and the paths of its documents do not exist.
    """

    log_file: Callable[[str, str, str, bool], LogFile]  # namespace, pod, container, previous
    exec_command: Callable[[str, str, str, tuple[str, ...], bool], list[str]]
    forward_host: Callable[[str, str], portforward.FindHost]  # namespace, pod
    pods: Callable[[], bytes]
    now: Callable[[], float]
    usage: Callable[[], Awaitable[NodeUsage]] | None = None


class CallerCertificate(msgspec.Struct, frozen=True):
    """The caller that is answered: it has a certificate that `context` verifies, with the common name `name`."""

    context: ssl.SSLContext
    name: str


class KubeletServer:
    """Listens on `host`; `port` 0 takes a free one. The server of several nodes takes the tokens of all. An
    empty token asks for none (tests). With `caller` it serves HTTPS and asks for that certificate instead of a token.
    """

    def __init__(
        self, backend: KubeletBackend, token: str | Collection[str], caller: CallerCertificate | None = None
    ) -> None:
        self._backend = backend
        self._tokens: Collection[str] = (token,) if isinstance(token, str) else token
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
            method, target, headers = await read_request(reader)
            await self._answer(method, target, headers, reader, writer)
        except HttpProblem as problem:
            write_answer(writer, problem.status, "text/plain", problem.what.encode())
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
            write_answer(writer, 200, "text/plain", b"ok")
            return
        if not self._is_allowed(headers, writer):
            raise HttpProblem(401, "Unauthorized")
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        query = parse_qs(url.query, keep_blank_values=True)
        if parts == ["pods"]:
            write_answer(writer, 200, "application/json", self._backend.pods())
        elif parts[0] == "containerLogs" and len(parts) == 4:
            await self._logs(parts, query, writer)
        elif parts[0] == "exec" and len(parts) == 4:
            await self._exec(parts, query, headers, reader, writer)
        elif parts[0] == "attach" and len(parts) == 4:
            await self._attach(parts, headers, reader, writer)
        elif parts[0] == "portForward" and len(parts) == 3:
            await self._forward(parts, headers, reader, writer)
        elif self._backend.usage is not None and parts == ["stats", "summary"]:
            brief = flag(query, "only_cpu_and_memory")
            body = msgspec.json.encode(summary(await self._backend.usage(), only_cpu_and_memory=brief))
            write_answer(writer, 200, "application/json", body)
        elif self._backend.usage is not None and parts == ["metrics", "resource"]:
            write_answer(writer, 200, CONTENT_TYPE, resource_metrics(await self._backend.usage()))
        else:
            raise HttpProblem(404, "404 page not found")

    def _is_allowed(self, headers: dict[str, str], writer: asyncio.StreamWriter) -> bool:
        """Return whether the caller is the API server of this kubelet's cluster."""
        if self._caller is not None:
            subject = (writer.get_extra_info("peercert") or {}).get("subject", ())
            return ("commonName", self._caller.name) in {field for fields in subject for field in fields}
        given = headers.get("authorization", "").removeprefix("Bearer ").encode()
        return "" in self._tokens or any(hmac.compare_digest(given, token.encode()) for token in self._tokens)

    async def _logs(self, parts: list[str], query: Query, writer: asyncio.StreamWriter) -> None:
        options = log_options(query, self._backend.now())
        file = self._backend.log_file(parts[1], parts[2], parts[3], flag(query, "previous"))
        write_head(writer, 200, "text/plain")

        async def send() -> None:
            await writer.drain()
            async for chunk in read_log(file.path, options, running=file.running, changed=_ticks):
                writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                await writer.drain()
            writer.write(b"0\r\n\r\n")

        await first_of(send(), hung_up(writer))  # without a write, a disconnected client is not detected

    async def _exec(
        self,
        parts: list[str],
        query: Query,
        headers: dict[str, str],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        require_websocket(headers, "exec", execute.PROTOCOL)
        tty = flag(query, "tty")
        command = self._backend.exec_command(parts[1], parts[2], parts[3], tuple(query.get("command", [])), tty)
        socket = to_websocket(reader, writer, headers, execute.PROTOCOL)
        stdin, stderr = flag(query, "stdin"), flag(query, "stderr")
        await execute.serve_exec(socket, command, stdin=stdin, stderr=stderr, tty=tty)

    async def _attach(
        self, parts: list[str], headers: dict[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        require_websocket(headers, "attach", execute.PROTOCOL)
        file = self._backend.log_file(parts[1], parts[2], parts[3], False)
        pieces = read_log(file.path, Options(follow=True), running=file.running, changed=_ticks)
        await serve_attach(to_websocket(reader, writer, headers, execute.PROTOCOL), pieces)

    async def _forward(
        self, parts: list[str], headers: dict[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        spdy = headers.get("upgrade", "").lower() == "spdy/3.1"
        if not spdy:
            require_websocket(headers, "port-forward", portforward.PROTOCOL)
        host = self._backend.forward_host(parts[1], parts[2])
        if spdy:
            accept_upgrade(writer, {"Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": portforward.SPDY_PROTOCOL})
            await portforward.serve_session(Session(reader, writer), host)
        else:
            await portforward.serve_forward(to_websocket(reader, writer, headers, portforward.PROTOCOL), host)


def log_options(query: Query, now: float) -> Options:
    """Read options from a query. Raises HttpProblem for an invalid number or time."""

    def number(name: str) -> int | None:
        text = query.get(name, [""])[-1]
        if not text:
            return None
        if not (text.isascii() and text.isdecimal()):
            raise HttpProblem(400, f"{name} must be a positive number, not {text!r}")
        return int(text)

    ago, moment = number("sinceSeconds"), query.get("sinceTime", [""])[-1]
    if ago is not None and moment:
        raise HttpProblem(400, "at most one of `sinceTime` or `sinceSeconds` may be specified")
    try:
        since = parse_time(moment).timestamp() if moment else None
    except ValueError as error:
        raise HttpProblem(400, f"sinceTime: {error}") from error
    return Options(
        follow=flag(query, "follow"),
        tail=number("tailLines"),
        timestamps=flag(query, "timestamps"),
        since=since if ago is None else now - ago,
        limit_bytes=number("limitBytes"),
    )


async def _ticks() -> AsyncIterator[None]:
    """Wait until a followed log is read again. Only while a client follows."""
    while True:
        await asyncio.sleep(_FOLLOW_SECONDS)
        yield
