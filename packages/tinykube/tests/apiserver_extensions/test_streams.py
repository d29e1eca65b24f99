"""exec and attach at the API server, before a kubelet is asked."""

from __future__ import annotations

import asyncio

import pytest

from tinykube.apiserver import Registry, User
from tinykube.apiserver.extensions import install
from tinykube.apiserver.rest import Rest


async def ask(app: Rest, what: str, headers: list[tuple[bytes, bytes]]) -> int:
    sent = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b""}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    path = f"/api/v1/namespaces/default/pods/p/{what}"
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"command=touch&command=/tmp/ran"}
    await app(scope | {"headers": [(b"authorization", b"Bearer admin"), *headers]}, receive, send)
    return int(str(sent[0]["status"]))


@pytest.mark.parametrize("what", ["exec", "attach"])
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"connection", b"upgrade"), (b"upgrade", b"h2c")],
        [(b"connection", b"upgrade"), (b"upgrade", b"websocket"), (b"sec-websocket-protocol", b"nonsense")],
    ],
    ids=["plain", "h2c", "unknown"],
)
async def test_a_request_that_cannot_be_answered_starts_no_command(
    what: str, headers: list[tuple[bytes, bytes]]
) -> None:
    asked: list[bytes] = []

    async def kubelet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(kubelet, "127.0.0.1", 0)
    registry = Registry()
    install(registry).identity.add("admin", User("admin", ("system:masters",)))
    addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
    endpoint = {"kubeletEndpoint": {"Port": server.sockets[0].getsockname()[1]}}
    status = {"addresses": addresses, "daemonEndpoints": endpoint}
    await registry.create("nodes", None, {"metadata": {"name": "n"}, "status": status})
    spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}
    await registry.create("pods", "default", {"metadata": {"name": "p"}, "spec": spec})
    assert await ask(Rest(registry), what, headers) == 400
    assert asked == []
    server.close()
