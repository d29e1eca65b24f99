"""The API server's calls to a program that is no kubelet, or a dead one: each ends, and leaves no connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.streams.kubelet import KubeletClient

PATIENCE_S = 30.0  # on a busy machine
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Hostile:
    """Answers each request with `answer`, and then waits until the caller hangs up, or hangs up itself."""

    def __init__(self, answer: bytes, hangs_up: bool) -> None:
        self._answer = answer
        self._hangs_up = hangs_up
        self.asked = asyncio.Event()
        self.left = asyncio.Event()
        self.node: dict[str, Any] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self._answer)
        self.asked.set()
        try:
            if not self._hangs_up:
                await reader.read()
        except ConnectionError:
            pass
        finally:
            self.left.set()
            writer.close()


@asynccontextmanager
async def hostile(answer: bytes, *, hangs_up: bool = False) -> AsyncIterator[Hostile]:
    kubelet = Hostile(answer, hangs_up)
    async with await asyncio.start_server(kubelet.serve, "127.0.0.1", 0) as server, asyncio.timeout(PATIENCE_S):
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": server.sockets[0].getsockname()[1]}},
        }
        kubelet.node = {"metadata": {"name": "n"}, "status": status}
        yield kubelet


async def test_a_kubelet_that_never_answers_is_given_up() -> None:
    async with hostile(b"HTTP/1.1 200 OK\r\n") as kubelet:
        client = KubeletClient(kubelet.node, "", patience_s=0.0)
        with pytest.raises(ApiFailure, match="did not answer"):
            await client.logs("/containerLogs/a/b/c")
        with pytest.raises(ApiFailure, match="did not answer"):
            await client.stream("/exec/a/b/c", "any")
        await kubelet.left.wait()


async def test_a_refusal_without_its_text_is_given_up() -> None:
    async with hostile(b"HTTP/1.1 503 X\r\n\r\n") as kubelet:
        with pytest.raises(ApiFailure) as caught:
            await KubeletClient(kubelet.node, "", patience_s=0.5).text("/metrics/resource")
        assert caught.value.status == 500
        await kubelet.left.wait()


@pytest.mark.parametrize(
    "first", [b"HTTP/1.1", b"HTTP/1.1 abc", b"", b"HTTP/1.1 99999 X", b"HTTP/1.1 -200 X", b"HTTP/1.1 \xb2 X"]
)
async def test_an_answer_that_is_no_http_is_an_error(first: bytes) -> None:
    async with hostile(first + b"\r\n\r\n") as kubelet:
        with pytest.raises(ApiFailure, match="does not answer as HTTP") as caught:
            await KubeletClient(kubelet.node, "").page("/stats/summary")
        assert caught.value.status == 500
        await kubelet.left.wait()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 503 X\r\n\r\n"])
async def test_a_call_that_is_cancelled_leaves_no_connection(answer: bytes) -> None:
    async with hostile(answer) as kubelet:
        call = asyncio.create_task(KubeletClient(kubelet.node, "").text("/metrics/resource"))
        await kubelet.asked.wait()
        call.cancel()
        await kubelet.left.wait()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_chunk_of_a_huge_size_is_passed_on_as_it_comes() -> None:
    async with hostile(CHUNKED + b"ffffffffff\r\nhello", hangs_up=True) as kubelet:
        pieces, writer = await KubeletClient(kubelet.node, "").logs("/containerLogs/a/b/c")
        came = b""
        with pytest.raises(asyncio.IncompleteReadError):
            async for piece in pieces:
                came += piece
        assert came == b"hello"
        writer.close()


async def test_chunks_of_many_pieces_are_whole() -> None:
    text = b"x" * 200_000
    body = b"%x\r\n%b\r\n3\r\nend\r\n0\r\n\r\n" % (len(text), text)
    async with hostile(CHUNKED + body, hangs_up=True) as kubelet:
        pieces, writer = await KubeletClient(kubelet.node, "").logs("/containerLogs/a/b/c")
        assert b"".join([piece async for piece in pieces]) == text + b"end"
        writer.close()


async def test_a_chunk_of_a_negative_size_is_an_error() -> None:
    async with hostile(CHUNKED + b"-5\r\nhello") as kubelet:
        pieces, writer = await KubeletClient(kubelet.node, "").logs("/containerLogs/a/b/c")
        with pytest.raises(ValueError, match="-5"):
            await anext(pieces)
        writer.close()
