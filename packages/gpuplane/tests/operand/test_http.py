"""The small HTTP server: what it reads, what it refuses, and that nothing is ever taken for the next request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from kubekit import http_server as http
from kubekit.http_server import HttpAnswer, serving

LONGEST = 2 << 20


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def hello() -> HttpAnswer:
        return HttpAnswer(b"hello")

    async def echo(body: bytes) -> HttpAnswer:
        return HttpAnswer(body)

    async def broken(body: bytes) -> HttpAnswer:
        raise ValueError(body)

    posts = {"/echo": echo, "/broken": broken}
    async with serving({"/hello": hello}, "127.0.0.1", 0, posts=posts, longest_body=LONGEST) as served:
        yield served


async def exchange(port: int, sent: bytes, *, end: bool = True) -> bytes:
    """Everything that is answered to `sent` until the connection is closed; `end` says that no more will come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    if end:
        writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


def post(path: str, body: bytes, *headers: str) -> bytes:
    head = "".join(f"{header}\r\n" for header in headers)
    return f"POST {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", answer)]


async def test_bodies_come_whole_and_the_connection_stays(port: int) -> None:
    body = b"x" * 300_000
    answer = await exchange(port, post("/echo", body) + b"GET /hello HTTP/1.1\r\n\r\n" + post("/echo?a=b", b"two"))
    assert statuses(answer) == [200, 200, 200]
    assert body in answer and b"hello" in answer and answer.endswith(b"two")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (post("/elsewhere", b"x") + b"GET /hello HTTP/1.1\r\n\r\n", 404),
        (post("/hello", b"x"), 405),
        (b"GET /echo HTTP/1.1\r\nConnection: close\r\n\r\n", 405),
        (b"PUT /echo HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", 405),
        (b"POST /echo HTTP/1.1\r\n\r\n", 411),
        (b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"POST /echo HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 411),
        (f"POST /echo HTTP/1.1\r\nContent-Length: {LONGEST + 1}\r\n\r\n".encode(), 413),
        (b"POST /echo HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nshort", 400),
        (b"GET /hello HTTP/1.1\r\nA: " + b"a" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /hello HTTP/1.1\r\nA: " + b"a" * 200_000, 431),
    ],
)
async def test_what_cannot_be_taken_is_said_and_ends_the_connection(port: int, sent: bytes, status: int) -> None:
    assert statuses(await exchange(port, sent)) == [status]


async def test_a_handler_that_fails_is_no_end_of_the_server(port: int) -> None:
    answer = await exchange(port, post("/broken", b"x") + post("/echo", b"still here"))
    assert statuses(answer) == [500, 200]


async def test_a_body_that_does_not_come_is_not_waited_for_for_ever(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_SECONDS", 0.05)
    answer = await exchange(port, b"POST /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\nhal", end=False)
    assert statuses(answer) == [408]


# -- slow callers ------------------------------------------------------------------------------------------------------
async def slow(port: int, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A caller that announces the longest body, sends a part of it, and no more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    # With the answer to Expect, the body is known to be waited for.
    writer.write(f"POST /echo HTTP/1.1\r\nContent-Length: {LONGEST}\r\nExpect: 100-continue\r\n\r\n".encode())
    assert b"100" in await reader.readuntil(b"\r\n\r\n")
    writer.write(sent)
    await writer.drain()
    return reader, writer


async def test_slow_callers_do_not_keep_another_one_out(port: int) -> None:
    slow_ones = [await slow(port) for _ in range(5)]
    assert statuses(await exchange(port, post("/echo", b"x" * LONGEST))) == [200]
    assert statuses(await exchange(port, post("/echo", b"small"))) == [200]
    # They are in time, and are served as well.
    for reader, writer in slow_ones:
        writer.write(b"x" * LONGEST)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await reader.readexactly(LONGEST)
        writer.close()


async def test_of_too_many_bytes_the_body_that_came_first_is_given_up(port: int) -> None:
    slow_ones = [await slow(port, b"x" * (LONGEST - 1)) for _ in range(4)]
    assert statuses(await exchange(port, post("/echo", b"x" * LONGEST))) == [200]
    for reader, writer in slow_ones[:2]:
        assert statuses(await reader.read()) == [408]
        writer.close()
    for _, writer in slow_ones[2:]:
        writer.close()


async def test_of_too_many_connections_the_longest_idle_is_closed() -> None:
    async def hello() -> HttpAnswer:
        return HttpAnswer(b"hello")

    request = b"GET /hello HTTP/1.1\r\n\r\n"
    async with serving({"/hello": hello}, "127.0.0.1", 0, most_connections=3) as port:
        callers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, writer in (*callers[1:], callers[0]):  # the second one is idle for longest, then
            writer.write(request)
            await reader.readexactly(len(b"HTTP/1.1 200 OK"))
            await reader.readuntil(b"hello")
        callers[2][1].write(b"GET /hello")  # the beginning of a head is no request
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        await reader.readuntil(b"hello")
        assert await callers[1][0].read() == b""
        callers[0][1].write(request)
        await callers[0][0].readuntil(b"hello")
        for _, each in (*callers, (reader, writer)):
            each.close()
