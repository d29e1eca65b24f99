"""Ends of answers: bodies without a length (RFC 9112, 6.3), bytes after an answer, heads without an end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from kubekit.kube import Unreachable
from kubekit.kube.http import HttpPool, read_whole

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
Serve = Callable[[asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def pool_to(serve: Serve) -> AsyncIterator[HttpPool]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await serve(writer)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    pool = HttpPool("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        yield pool
    finally:
        await pool.aclose()
        server.close()


async def streamed(pool: HttpPool, seen: asyncio.Event) -> bytes:
    async with pool.stream(REQUEST, timeout=10, idle=10) as (_, read):
        seen.set()
        return await read_whole(read, 1 << 20, pool.place)


async def test_a_streamed_body_without_a_length_may_come_after_its_head():
    seen = asyncio.Event()

    async def serve(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        await seen.wait()
        writer.write(b"one ")
        await writer.drain()
        writer.write(b"two")

    async with pool_to(serve) as pool:
        assert await streamed(pool, seen) == b"one two"


async def test_a_refusal_without_a_length_comes_with_its_whole_body():
    async def serve(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\nno ")
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(b"page")

    async with pool_to(serve) as pool, pool.stream(REQUEST, timeout=10, idle=10) as (answer, _):
        assert (answer.status, answer.body) == (404, b"no page")


async def test_a_connection_that_ends_within_the_head_is_no_answer():
    async def serve(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nServer: a\r\nDate: ")

    async with pool_to(serve) as pool:
        with pytest.raises(Unreachable, match="in the middle of an answer"):
            await pool.request(REQUEST, timeout=10, replay=False)


@pytest.mark.parametrize("rest", [b"Content-Length: 9\r\n\r\none", b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n"])
async def test_a_streamed_body_that_ends_early_is_an_error(rest: bytes):
    seen = asyncio.Event()

    async def serve(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + rest)
        await seen.wait()

    async with pool_to(serve) as pool:
        with pytest.raises(Unreachable, match="in the middle of an answer"):
            await streamed(pool, seen)


async def test_a_body_that_this_side_ends_is_not_whole():
    seen, over = asyncio.Event(), asyncio.Event()

    async def serve(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\none")
        await over.wait()

    async with pool_to(serve) as pool:
        reading = asyncio.create_task(streamed(pool, seen))
        await seen.wait()
        await pool.aclose()
        over.set()
        with pytest.raises(Unreachable, match="in the middle of an answer"):
            await reading


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
DENIED = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 6\r\n\r\ndenied"


class Scripted:
    """A server whose connections answer each request with the next of these bytes."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = iter(answers)
        self.connections = 0
        self.ended = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writer = writer
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(next(self._answers))
        self.ended.set()
        writer.close()

    def add(self, data: bytes) -> None:
        """Send bytes that no request asked for."""
        assert self._writer is not None
        self._writer.write(data)


@asynccontextmanager
async def pool_of(scripted: Scripted) -> AsyncIterator[HttpPool]:
    server = await asyncio.start_server(scripted, "127.0.0.1", 0)
    pool = HttpPool("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        yield pool
    finally:
        await pool.aclose()
        server.close()


@pytest.mark.parametrize("after", [OK, b"garbage!", OK[:20], b"HTTP/1.1 101 Switching\r\nUpgrade: a\r\n\r\n"])
@pytest.mark.parametrize("rest", [b"", b"Connection: close\r\n"])
async def test_bytes_after_an_answer_change_nothing_and_end_its_connection(after: bytes, rest: bytes) -> None:
    first = DENIED.replace(b"\r\n\r\n", b"\r\n" + rest + b"\r\n")
    scripted = Scripted(first + after, OK, first + after)
    async with pool_of(scripted) as pool:
        answer = await pool.request(REQUEST, timeout=10, replay=False)
        assert (answer.status, answer.header(b"content-length"), answer.body) == (403, "6", b"denied")
        answer = await pool.request(REQUEST, timeout=10, replay=False)
        assert (answer.status, answer.body, scripted.connections) == (200, b"ok", 2)
        async with pool.stream(REQUEST, timeout=10, idle=10) as (answer, _):
            assert (answer.status, answer.header(b"content-length"), answer.body) == (403, "6", b"denied")


@pytest.mark.parametrize("after", [OK, OK[:20], b"garbage!"])
async def test_bytes_on_an_idle_connection_end_it(after: bytes) -> None:
    scripted = Scripted(OK, DENIED)
    async with pool_of(scripted) as pool:
        await pool.request(REQUEST, timeout=10, replay=False)
        scripted.add(after)
        async with asyncio.timeout(10):
            await scripted.ended.wait()
        answer = await pool.request(REQUEST, timeout=10, replay=False)
        assert (answer.status, answer.body, scripted.connections) == (403, b"denied", 2)


async def test_a_second_answer_after_a_streamed_body_is_no_part_of_it() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\nContent-Type: text/late\r\n\r\n"
    async with (
        pool_of(Scripted(chunked + DENIED)) as pool,
        pool.stream(REQUEST, timeout=10, idle=10) as (answer, read),
    ):
        assert await read_whole(read, 1 << 20, pool.place) == b"one"
        assert (answer.status, answer.header(b"content-type")) == (200, None)


async def test_answers_before_the_answer_and_without_a_body_keep_the_connection() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"
    empty = b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"
    scripted = Scripted(early + OK, b"HTTP/1.1 204 No Content\r\n\r\n", empty, OK)
    async with pool_of(scripted) as pool:
        found = [await pool.request(REQUEST, timeout=10, replay=False) for _ in range(4)]
    assert [(one.status, one.body) for one in found] == [(200, b"ok"), (204, b""), (304, b""), (200, b"ok")]
    assert (found[0].header(b"link"), scripted.connections) == (None, 1)


@pytest.mark.parametrize(
    "start", [b"X: ", b"X: ".join([b"a" * 1000 + b"\r\n"] * 2000), b"a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "]
)
async def test_headers_without_an_end_are_no_answer(start: bytes) -> None:
    async with pool_of(Scripted(b"HTTP/1.1 200 OK\r\nY: " + start + b"a" * (2 << 20))) as pool:
        with pytest.raises(Unreachable, match="more than 1 MiB of headers"):
            await pool.request(REQUEST, timeout=10, replay=False)


async def test_a_long_body_and_a_long_head_are_an_answer() -> None:
    body = b"b" * (3 << 20)
    head = b"HTTP/1.1 200 OK\r\nX: %s\r\nContent-Length: %d\r\n\r\n" % (b"a" * 500_000, len(body))
    async with pool_of(Scripted(head + body)) as pool:
        answer = await pool.request(REQUEST, timeout=10, replay=False)
    assert (len(answer.headers[b"x"]), answer.body == body) == (500_000, True)
