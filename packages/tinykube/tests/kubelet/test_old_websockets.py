"""exec and logs over the oldest WebSocket protocols, through the API server."""

from __future__ import annotations

import asyncio
import base64
import ssl
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from tests.support.until import until
from tinykube.kubelet.websocket import TEXT, Closed, WebSocket

POD = "/api/v1/namespaces/default/pods/one"
WAITS = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


async def answers(api: Any, path: str, protocol: str, *sent: bytes) -> tuple[str, list[bytes]]:
    """The protocol that the server has chosen, and its messages until it closes."""
    url = urlsplit(api.server.url)
    context = ssl.create_default_context(cafile=str(api.server.authority))
    reader, writer = await asyncio.open_connection(url.hostname, url.port, ssl=context)
    try:
        offer = f"Sec-WebSocket-Protocol: {protocol}\r\n" if protocol else ""
        lines = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer test\r\nUpgrade: websocket\r\n"
        writer.write(f"{lines}Connection: Upgrade\r\nSec-WebSocket-Key: x\r\n{offer}\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert " 101 " in head, head
        chosen = [line.partition(": ")[2] for line in head.split("\r\n") if line.startswith("Sec-WebSocket-Protocol")]
        socket, got = WebSocket(reader, writer), []
        for message in sent:
            await socket.send(message, TEXT)
        try:
            while True:
                got.append(await socket.receive())
        except Closed:
            return "".join(chosen), got
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.fixture
async def running(api: Any, make_node: Any) -> Any:
    node = await make_node()
    await api.create_pod(
        containers=[{"name": "c", "image": "busybox:1.36", "command": ["sh", "-c", f"echo up; {WAITS}"]}]
    )
    await api.phase("Running")
    return node


def exec_of(script: str, **options: str) -> str:
    query = [("command", "sh"), ("command", "-c"), ("command", script), ("stdout", "1"), *options.items()]
    return f"{POD}/exec?{urlencode(query)}"


@pytest.mark.parametrize("protocol", ["channel.k8s.io", ""])
async def test_a_command_ends_without_a_word_or_with_the_text_of_its_error(
    api: Any, running: Any, protocol: str
) -> None:
    assert await answers(api, exec_of("echo out"), protocol) == (protocol, [b"\x01out\n"])
    _, failed = await answers(api, exec_of("exit 3"), protocol)
    assert failed == [b"\x03command terminated with non-zero exit code: exit status 3"]


async def test_a_command_in_base64(api: Any, running: Any) -> None:
    typed = b"0" + base64.b64encode(b"typed\n")
    chosen, got = await answers(api, exec_of("read line; echo $line", stdin="1"), "base64.channel.k8s.io", typed)
    assert (chosen, got) == ("base64.channel.k8s.io", [b"1" + base64.b64encode(b"typed\n")])
    chosen, got = await answers(api, exec_of("exit 3"), "v4.base64.channel.k8s.io")
    assert chosen == "v4.base64.channel.k8s.io"
    assert got[0][:1] == b"3"
    assert b'"NonZeroExitCode"' in base64.b64decode(got[0][1:])


@pytest.mark.parametrize("protocol", ["binary.k8s.io", "base64.binary.k8s.io", ""])
async def test_a_log(api: Any, running: Any, protocol: str) -> None:
    def text(messages: list[bytes]) -> bytes:
        return b"".join(base64.b64decode(m) if "base64" in protocol else m for m in messages)

    path = f"{POD}/log?container=c"

    async def is_written() -> bool:  # the container has just started
        return bool(text((await answers(api, path, protocol))[1]))

    await until(is_written)
    chosen, got = await answers(api, path, protocol)
    assert chosen == protocol
    assert got[0] == b""
    assert text(got) == b"up\n"
