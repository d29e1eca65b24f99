"""Services and measured use of simulated machines, with an embedded API server in the place of the real one.

Endpoints come from the pods alone: no controller of the API server writes them, as no real one may.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from gpulab.kubernetes import pki
from gpulab.kubernetes.metrics import MetricsServer, RawAPIService
from gpulab.kubernetes.mirror import ObjectMirror
from gpulab.kubernetes.services import SimulatedServices
from kubekit.api.kinds import built_in
from kubekit.kube import Client
from kubekit.kube.config import load
from tests.support.until import until
from tinykube.aggregation import FrontProxy
from tinykube.apiserver.addresses import ServiceRange
from tinykube.apiserver.identity import ADMIN
from tinykube.apiserver.server import ApiServer
from tinykube.cluster.kubeconfig import save
from tinykube.dns.wire import RecordType, parse_name, read_addresses, write_query
from tinykube.proxy.clients import on_no_node
from tinykube.proxy.listening import listening

RANGE: Final = ServiceRange("127.212.64.0/20")
PATIENCE_S: Final = 30.0  # on a busy machine
POD: Final = "127.90.7.5"
SERVICE: Final = built_in("v1", "Service")
PODS: Final = "/apis/metrics.k8s.io/v1beta1"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    made = await ApiServer.start(tmp_path / "pki", service_range=RANGE)
    made.extensions.identity.add("token", ADMIN)
    yield made
    await made.stop()


@pytest.fixture
async def client(tmp_path: Path, server: ApiServer) -> AsyncIterator[Client]:
    path = tmp_path / "kubeconfig"
    save(path, context="c", server=server.url, ca=server.authority.read_bytes(), user="u", token="token")
    async with Client(load(path)) as made:
        yield made


@pytest.fixture
async def mirror(client: Client) -> AsyncIterator[ObjectMirror]:
    made = ObjectMirror(client)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def dns_port(client: Client, server: ApiServer, mirror: ObjectMirror) -> AsyncIterator[int]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind((RANGE.dns_server, 0))
        port = int(free.getsockname()[1])
    services = SimulatedServices(client, mirror.registry, RANGE, server.port, on_no_node, dns_port=port)
    await services.open()
    task = asyncio.create_task(services.run())
    yield port
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await services.close()


async def pod_with_service(client: Client, port: int) -> str:
    """Make a ready pod and its Service, and return the address of the Service."""
    container = {"name": "c", "image": "busybox"}
    pod = {"metadata": {"name": "web", "labels": {"app": "web"}}, "spec": {"containers": [container]}}
    await client.create({"apiVersion": "v1", "kind": "Pod", **pod}, namespace="default")
    status = {"podIP": POD, "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await client.request(
        "PATCH",
        "/api/v1/namespaces/default/pods/web/status",
        None,
        {"status": status},
        content_type="application/merge-patch+json",
    )
    spec = {"selector": {"app": "web"}, "ports": [{"port": 8080, "targetPort": port}]}
    body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}
    made = await client.create(body, namespace="default", resource=SERVICE)
    return str(made["spec"]["clusterIP"])


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"from the pod")
    writer.close()


async def read(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        return await reader.read()
    finally:
        writer.close()


async def addresses(name: str, port: int) -> list[str]:
    """Return the addresses of a name, by the DNS server."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.setblocking(False)
        await loop.sock_connect(asking, (RANGE.dns_server, port))
        await loop.sock_sendall(asking, write_query(7, parse_name(name), RecordType.A))
        async with asyncio.timeout(5):
            data = await loop.sock_recv(asking, 65535)
    return [str(record.data) for record in read_addresses(data)[1]]


async def test_a_service_leads_to_its_pods_by_address_and_has_a_name(client: Client, dns_port: int) -> None:
    program = await asyncio.start_server(greet, POD, 0)
    async with program:
        address = await pod_with_service(client, program.sockets[0].getsockname()[1])
        assert await until(lambda: read(address, 8080), ignored=OSError) == b"from the pod"
    assert await addresses("web.default.svc.cluster.local", dns_port) == [address]
    made = await client.request("GET", "/api/v1/namespaces/kube-system/services/kube-dns")
    assert msgspec.json.decode(made)["spec"]["clusterIP"] == RANGE.dns_server


async def test_a_deleted_service_has_neither_pods_nor_a_name(
    client: Client, dns_port: int, mirror: ObjectMirror
) -> None:
    program = await asyncio.start_server(greet, POD, 0)
    async with program:
        address = await pod_with_service(client, program.sockets[0].getsockname()[1])
        await until(lambda: read(address, 8080), ignored=OSError)
        await client.delete(SERVICE, "web", "default")
        await until(lambda: address not in listening(8080))
    assert await addresses("web.default.svc.cluster.local", dns_port) == []
    slices = mirror.registry.list(("discovery.k8s.io", "endpointslices"), "default")
    assert [one["metadata"]["name"] for one in slices] == ["api-server", "kubernetes"]


async def test_a_service_that_is_made_again_has_the_endpoints_of_its_user_again(
    client: Client, dns_port: int, mirror: ObjectMirror
) -> None:
    """The API server keeps a user's EndpointSlice when its Service is deleted, and the copy does too."""
    meta = {"name": "by-hand", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}}
    body = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta, "addressType": "IPv4"}
    await client.create({**body, "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}]})

    def names() -> list[str]:
        slices = mirror.registry.list(("discovery.k8s.io", "endpointslices"), "default")
        return [one["metadata"]["name"] for one in slices]

    await until(lambda: "by-hand" in names())
    await pod_with_service(client, 1)
    await until(lambda: any(one.startswith("web-") for one in names()))
    await client.delete(SERVICE, "web", "default")
    await until(lambda: mirror.registry.get("services", "default", "web") is None)
    await client.delete(SERVICE, "kubernetes", "default")
    await until(lambda: mirror.registry.get("services", "default", "kubernetes") is None)
    assert {"api-server", "by-hand"} <= set(names())
    assert not any(one.startswith("web-") for one in names())


async def test_a_port_that_cannot_be_served_is_an_event_of_the_api_server(
    client: Client, dns_port: int, mirror: ObjectMirror
) -> None:
    taken = await asyncio.start_server(greet, RANGE.dns_server, 0)
    async with taken:
        port = taken.sockets[0].getsockname()[1]
        await pod_with_service(client, 1)
        spec = {"selector": {"app": "web"}, "clusterIP": "127.212.64.77", "ports": [{"port": port}]}
        other = await asyncio.start_server(greet, "127.212.64.77", port)
        async with other:
            body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hidden"}, "spec": spec}
            await client.create(body, namespace="default", resource=SERVICE)

            async def told() -> list[Any]:
                events = msgspec.json.decode(await client.request("GET", "/api/v1/namespaces/default/events"))
                return [one for one in events["items"] if one["reason"] == "PortNotServed"]

            (event,) = await until(told)
    assert event["involvedObject"]["name"] == "hidden"
    assert "is in use by another program" in event["message"]
    assert mirror.registry.list("events") == []  # the copy would hold it for ever


async def test_only_the_front_proxy_reads_measured_use(client: Client, mirror: ObjectMirror, tmp_path: Path) -> None:
    directory = tmp_path / "pki"
    proxy = FrontProxy(directory)
    pki.client(directory, pki.KUBELETS_CALLER, pki.KUBELETS_CALLER)
    metrics = MetricsServer(client, mirror.registry, directory)
    await metrics.open()
    try:
        spec = (await client.get(RawAPIService, "v1beta1.metrics.k8s.io")).spec
        host, port = f"{spec['service']['name']}.{spec['service']['namespace']}.svc", spec["service"]["port"]
        listed = await asked(port, host, proxy.context(spec), PODS)
        assert b" 200 " in listed and b'"PodMetrics"' in listed
        assert b'"items":[]' in await asked(port, host, proxy.context(spec), f"{PODS}/pods")
        stranger = ssl.create_default_context(cafile=str(directory / "ca.crt"))
        assert b" 401 " in await asked(port, host, stranger, PODS)
        assert b" 401 " in await asked(port, host, stranger, f"{PODS}/pods")
    finally:
        await metrics.close()


async def test_an_apiservice_of_another_metrics_server_stays(
    client: Client, mirror: ObjectMirror, tmp_path: Path
) -> None:
    pki.client(tmp_path / "pki", pki.KUBELETS_CALLER, pki.KUBELETS_CALLER)
    FrontProxy(tmp_path / "pki")
    theirs = {"namespace": "kube-system", "name": "metrics-server", "port": 443}
    spec = {"group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 1, "versionPriority": 1}
    spec |= {"service": theirs, "insecureSkipTLSVerify": True}
    made: dict[str, Any] = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService"}
    made |= {"metadata": {"name": "v1beta1.metrics.k8s.io"}, "spec": spec}
    await client.create(made, resource=RawAPIService.RESOURCE)
    metrics = MetricsServer(client, mirror.registry, tmp_path / "pki")
    await metrics.open()
    try:
        found = await client.get(RawAPIService, "v1beta1.metrics.k8s.io")
        assert found.spec["service"] == theirs
    finally:
        await metrics.close()


@pytest.mark.parametrize("kind", ["endless", "redirect", "garbage", "refusal"])
async def test_an_answer_of_a_hostile_kubelet_is_an_error_with_an_end(
    client: Client, mirror: ObjectMirror, tmp_path: Path, kind: str
) -> None:
    """A stolen token of a node writes any address into its Node, so any program may answer."""
    pki.client(tmp_path / "pki", pki.KUBELETS_CALLER, pki.KUBELETS_CALLER)
    FrontProxy(tmp_path / "pki")
    metrics = MetricsServer(client, mirror.registry, tmp_path / "pki")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate = tmp_path / "pki" / "resource-metrics"
    context.load_cert_chain(f"{certificate}.crt", f"{certificate}.key")
    heads = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        try:
            if kind == "redirect":
                writer.write(b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n")
            elif kind == "garbage":
                writer.write(b"220 smtp ready\r\n")
            else:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n" if kind == "endless" else b"HTTP/1.1 503 X\r\n\r\n")
                while True:
                    writer.write(bytes(1 << 20))
                    await writer.drain()
                    await asyncio.sleep(0)  # NB: drain alone never waits on a connection that is reset
        except ConnectionError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as kubelet:
        port = kubelet.sockets[0].getsockname()[1]
        addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
        status = {"addresses": addresses, "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(OSError):
                await metrics._read({"status": status})
    assert [head.split()[1] for head in heads] == [b"/metrics/resource"]


async def asked(port: int, host: str, context: ssl.SSLContext, path: str) -> bytes:
    """Return a whole answer, with its headers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    try:
        return await reader.read()
    finally:
        writer.close()
