"""The tokens that the API server shows to kubelets: a node writes its own address, and so learns its own token only."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

from tests.support.until import until
from tinykube.apiserver import Registry, User
from tinykube.apiserver.extensions import install
from tinykube.apiserver.identity import node_user
from tinykube.apiserver.rest import Rest
from tinykube.kubelet.requests import HttpProblem
from tinykube.kubelet.server import KubeletBackend, KubeletServer
from tinykube.kubelet.tokens import kubelet_token

LOCALHOST = "127.0.0.1"


class Listener:
    """A program that reads what the API server shows to it."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.shown += [line for line in head.split("\r\n") if line.startswith("Authorization: ")]
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n{}")
        writer.close()


def nothing(*_: Any) -> Any:
    raise HttpProblem(404, "none")


def kubelet(token: str | set[str]) -> KubeletServer:
    backend = KubeletBackend(
        log_file=nothing, exec_command=nothing, forward_host=nothing, pods=lambda: b"pods", now=lambda: 0.0
    )
    return KubeletServer(backend, token)


async def ask(app: Rest, method: str, path: str, token: str, body: object = None) -> tuple[int, bytes]:
    sent: list[dict[str, Any]] = []
    waiting = [{"type": "http.request", "body": b"" if body is None else json.dumps(body).encode()}]

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]  # it never leaves

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"authorization", b"Bearer " + token.encode()), (b"content-type", b"application/merge-patch+json")]
    await app({"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


async def read_pods(port: int, *headers: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(LOCALHOST, port)
    writer.write("\r\n".join(("GET /pods HTTP/1.1", "Host: x", *headers, "", "")).encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


def at(port: int) -> dict[str, Any]:
    return {
        "status": {
            "addresses": [{"type": "InternalIP", "address": LOCALHOST}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
    }


async def test_what_a_node_learns_at_its_address_opens_no_other_kubelet() -> None:
    registry = Registry()
    extensions = install(registry)
    extensions.streams.kubelet_secret = "secret"
    extensions.identity.add("admin", User("admin", ("system:masters",)))
    extensions.identity.add("stolen", node_user("bad"))
    extensions.identity.add("good", node_user("good"))
    app, listener, real = Rest(registry), Listener(), kubelet(kubelet_token("secret", "good"))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(await asyncio.start_server(listener, LOCALHOST, 0))
        port = await real.start()
        stack.push_async_callback(real.stop)
        for name, place, token in (("bad", server.sockets[0].getsockname()[1], "stolen"), ("good", port, "good")):
            await registry.create("nodes", "", {"metadata": {"name": name}})
            status, _ = await ask(app, "PATCH", f"/api/v1/nodes/{name}/status", token, at(place))
            assert status == 200
        assert await ask(app, "GET", "/api/v1/nodes/good/proxy/pods", "admin") == (200, b"pods")
        assert (await ask(app, "GET", "/api/v1/nodes/bad/proxy/pods", "admin"))[0] == 200
        await until(lambda: listener.shown)
        (shown,) = listener.shown
        assert (await read_pods(port, shown))[0] == 401
        # Nor does another name for it help: the name is that of the object, not what its status has.
        hostname = {"status": {"addresses": [*at(0)["status"]["addresses"], {"type": "Hostname", "address": "good"}]}}
        assert (await ask(app, "PATCH", "/api/v1/nodes/bad/status", "stolen", hostname))[0] == 200
        assert (await ask(app, "GET", "/api/v1/nodes/bad/proxy/pods", "admin"))[0] == 200
        await until(lambda: len(listener.shown) > 1)
        assert listener.shown == [shown, shown]


async def test_a_process_of_several_nodes_is_asked_with_the_token_of_each() -> None:
    server = kubelet({kubelet_token("secret", name) for name in ("a", "b")})
    port = await server.start()
    try:
        for name, status in (("a", 200), ("b", 200), ("c", 401)):
            shown = f"Authorization: Bearer {kubelet_token('secret', name)}"
            assert (await read_pods(port, shown))[0] == status
        assert (await read_pods(port))[0] == 401
    finally:
        await server.stop()
