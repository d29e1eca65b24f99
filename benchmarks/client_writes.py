"""CPU cost of one small write (a merge patch of a Node) over TLS on the loopback: ours, lightkube's, aiohttp's.

    python benchmarks/client_writes.py [COUNT]

The server is a process of its own that answers every request with the same bytes, so that the figure is the client's
alone: user and system time of this process, divided by the number of requests. Peers that are not installed are left
out. Concurrency is 8, as when one process serves many nodes.
"""

from __future__ import annotations

import asyncio
import base64
import multiprocessing
import resource
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

NODE = (
    b'{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","uid":"u","resourceVersion":"7","labels":{"a":"b"}},'
    b'"spec":{},"status":{"capacity":{"cpu":"8","nvidia.com/gpu":"8"},"conditions":[]}}'
)
PATCH = {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}}


def make_certificate(directory: Path) -> Path:
    pem = directory / "server.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(pem), "-out", str(directory / "ca.pem"),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    pem.write_text(pem.read_text() + (directory / "ca.pem").read_text())
    return pem


def serve(pem: str, port_out: Connection) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(NODE) + NODE

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast(asyncio.Transport, transport)
            self.data = b""

        def data_received(self, data: bytes) -> None:
            self.data += data
            while b"\r\n\r\n" in self.data:
                head, _, rest = self.data.partition(b"\r\n\r\n")
                found = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                length = int(found[0].split(b":")[1]) if found else 0
                if len(rest) < length:
                    return
                self.data = rest[length:]
                self.transport.write(answer)

    async def main() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, ssl=context)
        port_out.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measure(name: str, count: int, call: Callable[[], Awaitable[object]]) -> None:
    await asyncio.gather(*(call() for _ in range(8)))

    async def worker() -> None:
        for _ in range(count // 8):
            await call()

    before, start = cpu(), time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(8)))
    spent, wall = cpu() - before, time.perf_counter() - start
    print(f"{name:34} {1000 * spent / count:7.3f} ms CPU a write   {count / wall:8.0f} writes/s")


async def ours(port: int, ca: str, count: int, loop: str) -> None:
    from kubekit.api.core import Node
    from kubekit.kube import ApiEndpoint, Client
    from kubekit.kube.auth import StaticAuth

    tls = ssl.create_default_context(cafile=ca)
    async with Client(ApiEndpoint(host="127.0.0.1", port=port, auth=StaticAuth(token="t"), tls=tls)) as client:
        await measure(f"kubekit.kube, {loop}", count, lambda: client.patch(Node, "n1", PATCH))


async def with_lightkube(port: int, ca: str, count: int, loop: str) -> None:
    try:
        import lightkube
        from lightkube.config.kubeconfig import KubeConfig
        from lightkube.config.models import Cluster, User
        from lightkube.resources.core_v1 import Node
    except ImportError:
        return
    cluster = Cluster(
        server=f"https://127.0.0.1:{port}",
        certificate_auth_data=base64.b64encode(Path(ca).read_bytes()).decode(),
    )
    config = KubeConfig.from_one(cluster=cluster, user=User(token="t"))
    client = lightkube.AsyncClient(config=config)
    await measure(f"lightkube {loop}", count, lambda: client.patch(Node, "n1", PATCH))
    await client.close()


async def with_aiohttp(port: int, ca: str, count: int, loop: str) -> None:
    try:
        import aiohttp
    except ImportError:
        return
    tls = ssl.create_default_context(cafile=ca)
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer t"}) as session:

        async def call() -> None:
            url = f"https://127.0.0.1:{port}/api/v1/nodes/n1"
            async with session.patch(url, json=PATCH, ssl=tls) as response:
                await response.json()

        await measure(f"aiohttp alone, {loop}", count, call)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    with tempfile.TemporaryDirectory() as scratch:
        pem = make_certificate(Path(scratch))
        here, there = multiprocessing.Pipe()
        server = multiprocessing.Process(target=serve, args=(str(pem), there), daemon=True)
        server.start()
        port, ca = here.recv(), str(Path(scratch) / "ca.pem")
        for peer in (ours, with_aiohttp, with_lightkube):
            asyncio.run(peer(port, ca, count, "asyncio"))
            try:
                import uvloop
            except ImportError:
                continue
            uvloop.run(peer(port, ca, count, "uvloop"))
        server.terminate()


if __name__ == "__main__":
    main()
