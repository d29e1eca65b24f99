"""Every server of the product, started as the product starts it: slow callers of each kind block no other caller.

The servers are found by their listening sockets on the addresses of our pods, so a new one is tested by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpuplane import names
from kubekit.api.core import Node, Pod
from kubekit.api.kinds import built_in
from kubekit.http_server import MOST_CONNECTIONS
from kubekit.kube import Client
from packages.gpulab.tests.cloud.test_story import CloudWorld
from packages.gpuplane.tests.dashboard.scene import dashboard
from tests.support.until import until

PATIENCE_SECONDS = 120.0
SERVERS = {
    *("gpu-operator", "gpuplane-scheduler", "gpuplane-admission", "gpuplane-autoscaler"),
    *("device-plugin", "dcgm-exporter", "gpu-manager", "dashboard"),
}
NODE = "gpus"
HALF_CLIENT_HELLO = bytes.fromhex("160301020001000001fc0303")
HALF_HEAD = b"GET /metrics HTT"
HALF_BODY = b"POST %s HTTP/1.1\r\nContent-Length: 900000\r\n\r\n{"
UNREAD = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 2000
POSTS = (b"/mutate", b"/validate", b"/scheduler/predicates", b"/scheduler/bind", b"/")
"""Bytes that a caller sends after the connection or the handshake, and whether there is a handshake."""
SLOW: dict[str, tuple[tuple[bytes, ...], bool]] = {
    "nothing": ((b"",), False),
    "half of a ClientHello": ((HALF_CLIENT_HELLO,), False),
    "a handshake and nothing": ((b"",), True),
    "half of a head": ((HALF_HEAD,), True),
    "half of a body": (tuple(HALF_BODY % path for path in POSTS), True),
    "requests whose answers are not read": ((UNREAD,), True),
}


class Server(NamedTuple):
    address: str
    port: int
    process: int
    tls: bool


def listeners() -> Iterator[tuple[str, int, int]]:
    """Yield (IPv4 address, port, process) of each listening socket of this machine."""
    sockets = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for file in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    sockets[str(file.readlink())] = int(process.name)
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        holder = sockets.get(f"socket:[{words[9]}]")
        if words[3] == "0A" and holder:
            number, _, port = words[1].partition(":")
            yield ".".join(str(byte) for byte in reversed(bytes.fromhex(number))), int(port, 16), holder


def trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def connected(server: Server, *, handshake: bool = True) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    tls = trusting() if server.tls and handshake else None
    return await asyncio.open_connection(server.address, server.port, ssl=tls, limit=4096)


async def answered(server: Server) -> bool:
    """Return whether a caller at normal speed gets an answer."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await connected(server)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        status = await reader.readline()
        writer.transport.abort()
    return status.startswith(b"HTTP/1.1 ")


async def speaks_tls(address: str, port: int) -> bool:
    """Return whether a request by plain HTTP gets no answer."""
    reader, writer = await asyncio.open_connection(address, port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    line = b""
    with contextlib.suppress(ConnectionError):
        line = await reader.readline()
    writer.transport.abort()
    return not line.startswith(b"HTTP/1.1 ")


async def prepare(kubeconfig: Path) -> None:
    """Share the node's GPUs, and start gpu-manager's own pod."""
    async with Client.connect(kubeconfig) as client:
        await client.patch(Node, NODE, {"metadata": {"labels": {names.SHARE_LABEL: "enable"}}})
        await gpu_manager(client)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudWorld]:
    made = CloudWorld(tmp_path_factory.mktemp("v"), "--wait", machines=(f"{NODE}=t4-ubuntu22",))
    try:
        asyncio.run(prepare(made.kubeconfig))
        yield made
    finally:
        made.gpuplane("down", "-q")


@pytest.fixture
async def servers(world: CloudWorld, tmp_path: Path) -> AsyncIterator[dict[str, Server]]:
    """All servers by the names of their components, once each of them listens."""
    (tmp_path / "config").write_bytes(world.kubeconfig.read_bytes())
    async with Client.connect(world.kubeconfig) as client, dashboard(tmp_path) as page:

        async def listening() -> dict[str, tuple[str, int, int]]:
            pods = {pod.status.pod_ip: component(pod) for pod in await client.list(Pod) if pod.status.pod_ip}
            here = {f"{pods[at]}:{port}": (at, port, pid) for at, port, pid in listeners() if at in pods}
            here[f"dashboard:{page.port}"] = ("127.0.0.1", page.port, page.process.pid)
            return here if {name.partition(":")[0] for name in here} >= SERVERS else {}

        found = await until(listening, seconds=PATIENCE_SECONDS, what="every server listens")
        yield {name: Server(*place, await speaks_tls(*place[:2])) for name, place in found.items()}


def component(pod: Pod) -> str:
    labels = pod.metadata.labels
    return labels.get("app.kubernetes.io/component") or labels.get("app.kubernetes.io/name") or pod.metadata.name


async def gpu_manager(client: Client) -> None:
    """gpu-manager's own pod on the node with GPUs, as its manifest has it; the webhook has our program run in it."""
    account: dict[str, Any] = {"kind": "ServiceAccount", "name": "gpu-manager", "namespace": "kube-system"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    container = {"name": "gpu-manager", "image": "tkestack/gpu-manager:v1.1.5"}
    spec = {"nodeName": NODE, "containers": [container], "serviceAccountName": "gpu-manager"}
    for version, kind, body in (
        ("v1", "ServiceAccount", {}),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", {"roleRef": role, "subjects": [account]}),
        ("v1", "Pod", {"spec": spec}),
    ):
        resource = built_in(version, kind)
        manifest = {"apiVersion": version, "kind": kind, "metadata": {"name": "gpu-manager"}, **body}
        await client.create(manifest, namespace="kube-system" if resource.namespaced else None, resource=resource)


@pytest.mark.deadline(600)
async def test_slow_callers_block_no_other_caller(servers: dict[str, Server]) -> None:
    by_tls = {name.partition(":")[0] for name, server in servers.items() if server.tls}
    assert by_tls == {"gpuplane-scheduler", "gpuplane-admission"}
    for name, server in servers.items():
        opened: list[asyncio.StreamWriter] = []
        for kind, (texts, handshake) in SLOW.items():
            for _ in range(2):
                for text in texts:
                    _, writer = await connected(server, handshake=handshake)
                    writer.write(text)
                    opened.append(writer)
            assert await answered(server), f"{name}: {kind}"
        for writer in opened:
            writer.transport.abort()


@pytest.mark.deadline(600)
@pytest.mark.parametrize("kind", ["nothing", "half of a head"])
async def test_connections_are_bounded_and_a_new_caller_is_answered(servers: dict[str, Server], kind: str) -> None:
    (text, *_), handshake = SLOW[kind]
    for name, server in servers.items():
        files = Path(f"/proc/{server.process}/fd")
        before = len(list(files.iterdir()))
        opened = []
        for _ in range(MOST_CONNECTIONS + 100):
            with contextlib.suppress(ConnectionError):
                _, writer = await connected(server, handshake=handshake)
                opened.append(writer)
                writer.write(text)
        assert await answered(server), f"{name}: {kind}"
        assert len(list(files.iterdir())) - before <= MOST_CONNECTIONS + 20, f"{name}: {kind}"
        for writer in opened:
            writer.transport.abort()
