"""Bodies without a length: they end with the connection, however slowly they come (RFC 9112, 6.3)."""

from __future__ import annotations

import asyncio
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
