"""API servers of users behind the embedded one: a small adapter of custom metrics, and autoscalers that follow it."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import unquote

import pytest

from kubekit.api.kinds import built_in
from kubekit.kube import ApiError, Client
from kubekit.kube.certificates import KeyPair, Validity, issue, make_authority
from tests.support.until import until

API_SERVICE = built_in("apiregistration.k8s.io/v1", "APIService")
AUTOSCALER = built_in("autoscaling/v2", "HorizontalPodAutoscaler")
DEPLOYMENT = built_in("apps/v1", "Deployment")
SERVICE = built_in("v1", "Service")
ENDPOINTS = built_in("v1", "Endpoints")
PATIENCE_SECONDS = 120.0
CUSTOM = "custom.metrics.k8s.io/v1beta2"


class Adapter:
    """An HTTPS server with pages of JSON, by path. It notes the head of each request, and the client's certificate.

    The answer for a path in `held` waits for its event.
    """

    def __init__(self, authority: KeyPair, pair: KeyPair) -> None:
        self.authority = authority
        self.pages: dict[str, Any] = {}
        self.held: dict[str, asyncio.Event] = {}
        self.noted = asyncio.Event()
        self.asked: list[tuple[str, dict[str, list[str]], Any]] = []
        self.port = 0
        self._pair = pair
        self._server: asyncio.Server | None = None

    async def start(self, directory: Any, clients: str) -> None:
        """Serve to clients of the authority `clients`, in PEM."""
        files = directory / "adapter.crt", directory / "adapter.key"
        files[0].write_bytes(self._pair.certificate_pem)
        files[1].write_bytes(self._pair.key_pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
        context.load_verify_locations(cadata=clients)
        context.verify_mode = ssl.CERT_REQUIRED
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        for event in self.held.values():
            event.set()
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers: dict[str, list[str]] = {}
            for line in lines[1:]:
                name, _, value = line.partition(": ")
                headers.setdefault(name.lower(), []).append(value)
            path = unquote(lines[0].split()[1])
            peer = dict(field for part in writer.get_extra_info("peercert")["subject"] for field in part)
            self.asked.append((path, headers, peer["commonName"]))
            self.noted.set()
            if path in self.held:
                await self.held[path].wait()
            page = self.pages.get(path.partition("?")[0])
            if isinstance(page, list):  # pieces, as of a watch
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
                for piece in page:
                    writer.write(f"{len(piece):x}\r\n{piece}\r\n".encode())
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
            else:
                body = json.dumps({"kind": "Status", "message": "none here"} if page is None else page).encode()
                head = f"HTTP/1.1 {404 if page is None else 200} X\r\nContent-Type: application/json\r\n"
                writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()


@pytest.fixture
def adapter() -> Adapter:
    now = datetime.datetime.now(datetime.UTC)
    validity = Validity(now - datetime.timedelta(hours=1), now + datetime.timedelta(hours=1))
    authority = make_authority("adapters", validity)
    return Adapter(authority, issue(authority, "adapter", validity, hosts=("adapter.default.svc",)))


@pytest.fixture
async def client(embedded_cluster: Any) -> AsyncIterator[Client]:
    cluster = await embedded_cluster()
    async with Client.connect(cluster.kubeconfig) as made:
        yield made


@pytest.fixture
async def registered(client: Client, adapter: Adapter, tmp_path: Any) -> AsyncIterator[Adapter]:
    """The adapter behind a Service, with an APIService for custom metrics."""
    config = await get(client, "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication")
    await adapter.start(tmp_path, config["data"]["requestheader-client-ca-file"])
    resource = {"name": "pods/hits", "namespaced": True, "kind": "MetricValueList", "verbs": ["get"]}
    adapter.pages[f"/apis/{CUSTOM}"] = {"kind": "APIResourceList", "resources": [{"name": "pods"}, resource]}
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "adapter"}}
    await client.create({**body, "spec": {"ports": [{"port": 443}]}}, namespace="default", resource=SERVICE)
    subsets = [{"addresses": [{"ip": "127.0.0.1"}], "ports": [{"port": adapter.port}]}]
    body = {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "adapter"}, "subsets": subsets}
    await client.create(body, namespace="default", resource=ENDPOINTS)
    await register(client, adapter, "custom.metrics.k8s.io", "v1beta2")
    yield adapter
    await adapter.stop()


async def register(client: Client, adapter: Adapter, group: str, version: str) -> None:
    bundle = base64.b64encode(adapter.authority.certificate_pem).decode()
    spec = {"group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 100}
    spec |= {"caBundle": bundle, "service": {"namespace": "default", "name": "adapter"}}
    body = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": f"{version}.{group}"}}
    await client.create({**body, "spec": spec}, resource=API_SERVICE)


async def get(client: Client, path: str, **params: str) -> Any:
    return json.loads(await client.request("GET", path, params))


async def condition(client: Client, name: str) -> tuple[str, str, str]:
    found = await get(client, f"/apis/apiregistration.k8s.io/v1/apiservices/{name}")
    first = ((found.get("status") or {}).get("conditions") or [{}])[0]
    return first.get("status", ""), first.get("reason", ""), first.get("message", "")


async def is_available(client: Client, name: str) -> None:
    async def passed() -> bool:
        return (await condition(client, name))[0] == "True"

    await until(passed, seconds=PATIENCE_SECONDS)


async def test_a_group_of_another_server_is_served(client: Client, registered: Adapter) -> None:
    await is_available(client, "v1beta2.custom.metrics.k8s.io")
    assert await condition(client, "v1beta2.custom.metrics.k8s.io") == ("True", "Passed", "all checks passed")
    groups = {one["name"]: one for one in (await get(client, "/apis"))["groups"]}
    assert groups["custom.metrics.k8s.io"]["preferredVersion"]["groupVersion"] == CUSTOM
    assert "apps" in groups
    assert (await get(client, "/apis/custom.metrics.k8s.io"))["versions"][0]["version"] == "v1beta2"
    assert (await get(client, f"/apis/{CUSTOM}"))["kind"] == "APIResourceList"
    path = f"/apis/{CUSTOM}/namespaces/default/pods/*/hits"
    registered.pages[path] = {"items": []}
    registered.asked.clear()
    assert await get(client, path, labelSelector="a=b") == {"items": []}
    ((asked, headers, name),) = registered.asked
    assert asked == f"{path}?labelSelector=a=b"
    assert name == "front-proxy-client"
    assert "system:masters" in headers["x-remote-group"]
    assert len(headers["x-remote-user"]) == 1
    assert "authorization" not in headers
    registered.pages[path] = ['{"type":"ADDED"}\n', '{"type":"DELETED"}\n']
    assert await client.request("GET", path) == b'{"type":"ADDED"}\n{"type":"DELETED"}\n'
    with pytest.raises(ApiError) as refused:
        await get(client, f"/apis/{CUSTOM}/namespaces/default/pods/*/other")
    assert refused.value.status == 404


async def test_a_server_that_cannot_be_used_says_why(client: Client, registered: Adapter) -> None:
    registered.authority = make_authority("others", Validity(*_hours()))
    await register(client, registered, "external.metrics.k8s.io", "v1beta1")
    bodies = {"v1.nowhere.example.com": ("nosuch", 443), "v1.port.example.com": ("adapter", 99)}
    for name, (service, port) in bodies.items():
        version, _, group = name.partition(".")
        spec = {"group": group, "version": version, "groupPriorityMinimum": 1, "versionPriority": 1}
        spec |= {"service": {"namespace": "default", "name": service, "port": port}, "insecureSkipTLSVerify": True}
        body = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name}}
        await client.create({**body, "spec": spec}, resource=API_SERVICE)
    expected = {
        "v1.nowhere.example.com": ("ServiceNotFound", 'service/nosuch in "default" is not present'),
        "v1.port.example.com": ("ServicePortError", 'service/adapter in "default" is not listening on port 99'),
        "v1beta1.external.metrics.k8s.io": ("FailedDiscoveryCheck", "failing or missing response from https://"),
    }
    for name, (reason, message) in expected.items():

        async def is_refused(name: str = name, reason: str = reason, message: str = message) -> bool:
            status, *found = await condition(client, name)
            return status == "False" and found[0] == reason and found[1].startswith(message)

        await until(is_refused, seconds=PATIENCE_SECONDS)
    with pytest.raises(ApiError) as refused:
        await get(client, "/apis/external.metrics.k8s.io/v1beta1")
    assert refused.value.status == 503


async def test_a_server_answers_while_it_is_checked_again(client: Client, registered: Adapter) -> None:
    await is_available(client, "v1beta2.custom.metrics.k8s.io")
    checked, path = f"/apis/{CUSTOM}", f"/apis/{CUSTOM}/namespaces/default/pods/*/hits"
    registered.pages[path] = {"items": []}
    registered.held[checked] = asyncio.Event()
    registered.asked.clear()
    registered.noted.clear()
    await annotate(client, "/api/v1/namespaces/default/endpoints/adapter")
    await asyncio.wait_for(registered.noted.wait(), PATIENCE_SECONDS)
    assert registered.asked[0][0] == checked
    assert await get(client, path) == {"items": []}
    registered.held[checked].set()


async def test_a_server_whose_service_is_deleted_is_not_asked(client: Client, registered: Adapter) -> None:
    name = "v1beta2.custom.metrics.k8s.io"
    await is_available(client, name)
    await client.request("DELETE", "/api/v1/namespaces/default/services/adapter")
    await is_passed(client, name, "ServiceNotFound")
    registered.asked.clear()
    with pytest.raises(ApiError) as refused:
        await get(client, f"/apis/{CUSTOM}/namespaces/default/pods/*/hits")
    assert (refused.value.status, registered.asked) == (503, [])


async def annotate(client: Client, path: str) -> None:
    body = {"metadata": {"annotations": {"touched": "yes"}}}
    await client.request("PATCH", path, None, body, "application/merge-patch+json")


def _hours() -> tuple[datetime.datetime, datetime.datetime]:
    now = datetime.datetime.now(datetime.UTC)
    return now - datetime.timedelta(hours=1), now + datetime.timedelta(hours=1)


async def test_a_deployment_follows_a_metric_of_the_adapter(client: Client, registered: Adapter) -> None:
    await is_available(client, "v1beta2.custom.metrics.k8s.io")
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "busybox"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    body: dict[str, Any] = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    await client.create(body, namespace="default", resource=DEPLOYMENT)
    service = {"apiVersion": "v1", "kind": "Service", "name": "adapter"}
    wanted = {"type": "AverageValue", "averageValue": "10"}
    source = {"describedObject": service, "metric": {"name": "hits"}, "target": wanted}
    path = f"/apis/{CUSTOM}/namespaces/default/services/adapter/hits"
    registered.pages[path] = {"items": [{"describedObject": service, "value": "50"}]}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    spec = {"maxReplicas": 9, "scaleTargetRef": target, "metrics": [{"type": "Object", "object": source}]}
    body = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"}}
    await client.create({**body, "spec": spec}, namespace="default", resource=AUTOSCALER)

    async def has_grown() -> bool:
        found = await get(client, "/apis/apps/v1/namespaces/default/deployments/web")
        return bool(found["spec"]["replicas"] == 4)  # five are wanted, and two may only double

    await until(has_grown, seconds=PATIENCE_SECONDS)


async def test_an_installed_metrics_server_takes_over_until_it_is_removed(client: Client, registered: Adapter) -> None:
    name = "v1beta1.metrics.k8s.io"
    path, nodes = f"/apis/apiregistration.k8s.io/v1/apiservices/{name}", "/apis/metrics.k8s.io/v1beta1/nodes"
    assert (await get(client, nodes))["items"] == []
    registered.pages["/apis/metrics.k8s.io/v1beta1"] = {"kind": "APIResourceList", "resources": [{"name": "nodes"}]}
    registered.pages[nodes] = {"items": [{"metadata": {"name": "theirs"}}]}
    spec = {"service": {"namespace": "default", "name": "adapter"}, "insecureSkipTLSVerify": True}
    await client.request("PATCH", path, None, {"spec": spec}, "application/merge-patch+json")
    await is_passed(client, name, "Passed")
    assert (await get(client, nodes))["items"][0]["metadata"]["name"] == "theirs"
    gone = {"service": None, "insecureSkipTLSVerify": None}
    await client.request("PATCH", path, None, {"spec": gone}, "application/merge-patch+json")
    await is_passed(client, name, "Local")
    assert (await get(client, nodes))["items"] == []


async def is_passed(client: Client, name: str, reason: str) -> None:
    async def passed() -> bool:
        return (await condition(client, name))[1] == reason

    await until(passed, seconds=PATIENCE_SECONDS)
