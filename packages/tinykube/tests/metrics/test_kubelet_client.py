"""The API server's calls to kubelets. Any program may answer: the token of a node may write any address."""

from __future__ import annotations

import asyncio

import pytest

from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.streams.kubelet import MOST_BYTES, KubeletClient

PATIENCE_S = 30.0  # on a busy machine


async def text_of(head: bytes, piece: bytes) -> str:
    """Return what is read of a kubelet that answers `head`, and `piece` again and again."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        try:
            while piece:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)  # NB: drain alone never waits on a connection that is reset
        except ConnectionError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as kubelet, asyncio.timeout(PATIENCE_S):
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.sockets[0].getsockname()[1]}},
        }
        return await KubeletClient({"metadata": {"name": "n"}, "status": status}, "").text("/metrics/resource")


async def test_an_endless_page_is_cut() -> None:
    assert len(await text_of(b"HTTP/1.1 200 OK\r\n\r\n", bytes(1 << 20))) == MOST_BYTES


async def test_an_endless_head_is_an_error() -> None:
    with pytest.raises(ApiFailure, match="hung up"):
        await text_of(b"HTTP/1.1 200 OK\r\nX: ", b"x" * 65536)


async def test_an_endless_refusal_is_cut() -> None:
    with pytest.raises(ApiFailure, match=r"\(503\)"):
        await text_of(b"HTTP/1.1 503 X\r\n\r\n", b"no " * 1000)
