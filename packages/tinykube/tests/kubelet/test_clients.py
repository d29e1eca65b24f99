"""The node of a client is found by its container, however isolated the container is."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from tinykube.kubelet.containers import Isolation
from tinykube.proxy import ClientNodes
from tinykube.proxy.routes import ListenAddress

CONNECT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as server:
    server.recv(100)
"""


@pytest.mark.parametrize("isolation", list(Isolation))
@pytest.mark.parametrize("cleared", [False, True], ids=["", "cleared"])
async def test_a_client_in_a_container_is_on_its_node(
    api: Any, make_node: Any, tmp_path: Path, isolation: Isolation, cleared: bool
) -> None:
    node = await make_node(isolation=isolation)
    clients = ClientNodes(tmp_path / "nodes")
    found: asyncio.Queue[str] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = writer.get_extra_info("sockname")
        await found.put(await clients.find(writer.get_extra_info("peername"), ListenAddress(host, port)))
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    client = [sys.executable, "-c", CONNECT, address[0], str(address[1])]
    words = ["sh", "-c", 'env -i "$@"; true', "sh", *client] if cleared else client
    made = {"name": "c", "image": "python:3.11", "command": words}
    await api.create_pod(restartPolicy="Never", containers=[made])
    assert await asyncio.wait_for(found.get(), 30) == node.directory.name
    _, writer = await asyncio.open_connection(*address)
    assert await asyncio.wait_for(found.get(), 30) == ""
    writer.close()
    await api.phase("Succeeded")
    server.close()
