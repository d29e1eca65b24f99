"""Requests that are passed on to another API server, and what a slow or hostile one can answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, Final, cast

import pytest

from tinykube.aggregation import FrontProxy
from tinykube.aggregation.backend import Backend, ServiceState
from tinykube.apiserver.asgi import HttpRequest, HttpResponse
from tinykube.apiserver.hooks import User

PATH: Final = "/apis/g.example/v1/things"
PATIENCE_S: Final = 30.0  # on a busy machine
MANY: Final = 17 << 20
Answer = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class PlainProxy:
    """Connects without TLS."""

    def context(self, spec: dict[str, Any]) -> None:
        return None


@asynccontextmanager
async def backend(answer: Answer) -> AsyncIterator[Backend]:
    """A server that is `answer` with the head of each request, behind an APIService."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(await reader.readuntil(b"\r\n\r\n"), reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        address = server.sockets[0].getsockname()
        spec = {"group": "g.example", "version": "v1", "service": {"namespace": "default", "name": "s"}}
        made = Backend(spec, cast(FrontProxy, PlainProxy()), lambda *_: address)
        yield made
        await made.aclose()


class Asked:
    """A request of a client, and what is sent to it piece by piece."""

    def __init__(
        self,
        method: str = "GET",
        body: bytes = b"",
        user: str = "ann",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.sent: list[Any] = []
        self._body: bytes | None = body
        listed = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"method": method, "path": PATH, "query_string": b"", "headers": listed}
        self.request = HttpRequest(scope, self._receive, self._send)
        self.request.user = User(user, ("system:authenticated",))

    async def _receive(self) -> dict[str, Any]:
        if self._body is None:
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    async def of(self, server: Backend) -> HttpResponse | None:
        async with asyncio.timeout(PATIENCE_S):
            return await server.forward(self.request)


async def test_a_head_ends_though_its_answer_has_the_length_of_a_body() -> None:
    async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert head.startswith(b"HEAD ")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nX-Seen: yes\r\n\r\n")
        await reader.read()

    async with backend(answer) as server:
        found = await Asked("HEAD").of(server)
    assert found is not None and (found.status, found.headers) == (200, ((b"x-seen", b"yes"),))


async def test_an_informational_answer_is_not_the_answer() -> None:
    """A server written in Go sends 100 to a client that expects it; the body is passed on without a wait."""
    heads = []

    async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
        await reader.readexactly(4)
        writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok")

    async with backend(answer) as server:
        found = await Asked("POST", b"body", headers={"expect": "100-continue"}).of(server)
    assert found is not None and (found.status, found.body) == (201, b"ok")
    assert b"expect" not in heads[0].lower()


async def test_a_client_cannot_name_another_user() -> None:
    heads = []

    async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(head.decode().lower())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    forged = {"x-remote-user": "root", "x-remote-extra-a": "root", "impersonate-user": "root"}
    forged |= {"authorization": "Bearer t", "connection": "x-remote-user"}
    forged["sec-websocket-protocol"] = "base64url.bearer.authorization.k8s.io.dA, own"
    async with backend(answer) as server:
        await Asked(headers=forged).of(server)
        await Asked(user="пётр\r\nX-Remote-Group: system:masters").of(server)
    assert "root" not in heads[0] and "bearer" not in heads[0] and "connection" not in heads[0]
    assert "sec-websocket-protocol: own\r\n" in heads[0]
    lines = heads[1].split("\r\n")
    assert "x-remote-user: пётр  x-remote-group: system:masters" in lines  # one line, and a name of its own
    assert [line for line in lines if line.startswith("x-remote-group")] == ["x-remote-group: system:authenticated"]


async def test_a_huge_answer_is_passed_on_in_pieces() -> None:
    async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % MANY)
        for _ in range(17):
            writer.write(bytes(1 << 20))
            await writer.drain()

    asked = Asked()
    async with backend(answer) as server:
        assert await asked.of(server) is None
    pieces = [len(one.get("body", b"")) for one in asked.sent]
    assert sum(pieces) == MANY and max(pieces) <= 4 << 20


@pytest.mark.parametrize("status", [200, 500])
async def test_an_endless_answer_to_a_check_is_cut(status: int) -> None:
    ended = asyncio.Event()

    async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %d X\r\n\r\n" % status)
        try:
            while True:
                writer.write(bytes(1 << 20))
                await writer.drain()
        finally:
            ended.set()

    async with backend(answer) as server, asyncio.timeout(PATIENCE_S):
        with pytest.raises(ServiceState, match="MiB" if status == 200 else "bad status"):
            await server.check()
        await ended.wait()
