"""`gpuplane dashboard` in front of the cluster's dashboard, through the proxy of the API server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from gpuplane import names
from gpuplane.operator.installation import DASHBOARD, manifests, resource_of
from kubekit.api.kinds import built_in
from kubekit.kube import Client
from kubekit.kube.certificates import CLIENT, Validity, issue, load
from packages.gpuplane.tests.dashboard.in_cluster import (
    PATIENCE,
    RBAC,
    SECRET_POD,
    SECRET_SPACE,
    InCluster,
    in_cluster,
    two_tenants,
    viewer,
)
from packages.gpuplane.tests.dashboard.scene import Started, dashboard, get, held
from tests.support.extender_world import World
from tests.support.until import until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    async with two_tenants(tmp_path) as world:
        yield world


async def installed_service(world: World, port: int) -> None:
    """The dashboard's Service, which leads to a port of this machine."""
    [service] = [one for one in manifests(DASHBOARD) if one["kind"] == "Service"]
    await world.client.apply(service, "test", resource=resource_of(service))
    meta = {"name": names.DASHBOARD_NAME, "namespace": names.OPERATOR_NAMESPACE}
    subset = {"addresses": [{"ip": "127.0.0.1"}], "ports": [{"name": "https", "port": port}]}
    body = {"apiVersion": "v1", "kind": "Endpoints", "metadata": meta, "subsets": [subset]}
    await world.client.create(body, resource=built_in("v1", "Endpoints"))


async def may_reach(world: World, user: str) -> None:
    """Bind the role that the installation has for viewers."""
    meta = {"name": f"{user}-dashboard", "namespace": names.OPERATOR_NAMESPACE}
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": meta,
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "gpuplane:dashboard-viewer"},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }
    await world.client.apply(binding, "test", resource=built_in(f"{RBAC}/v1", "RoleBinding"))


@contextlib.asynccontextmanager
async def forwarded(world: World, folder: Path, user: str) -> AsyncIterator[tuple[InCluster, Started]]:
    """The cluster's dashboard, and the command of a user in front of it."""
    async with in_cluster(world, folder) as inner:
        await installed_service(world, inner.port)
        await may_reach(world, user)
        (folder / "config").write_text(world.kubeconfig(user))
        async with dashboard(folder) as started:
            yield inner, started


async def said(started: Started) -> str:
    """The line that the command says of itself."""
    assert started.process.stderr is not None
    async with asyncio.timeout(PATIENCE):
        return (await started.process.stderr.readline()).decode()


async def test_a_tenant_gets_the_clusters_dashboard_with_its_own_names(cluster: World, tmp_path: Path) -> None:
    async with forwarded(cluster, tmp_path, "ml-user") as (_, started):
        assert "The dashboard in prod, as ml-user" in await said(started)
        answer = await get(started, "/api/snapshot")
        data = msgspec.json.decode(gzip.decompress(answer.body))["data"]
        assert [one["pod"] for one in data["waiting"]] == ["ml/large"] and data["hidden"] == ["pods", "nodes"]
        assert SECRET_POD.encode() not in gzip.decompress(answer.body)
        assert (await get(started, "/api/viewer")).json == {"user": "ml-user", "session": False}
        assert (await get(started, "/api/pod/ml/train")).json["node"] == "n1"
        refused = await get(started, f"/api/pod/{SECRET_SPACE}/{SECRET_POD}")
        assert refused.status == 403 and "may not list pods" in refused.json["what"]
        assert (await get(started, "/api/node/n%39")).status == 403
        for path, kind in (("/", "text/html"), ("/page/app.js", "text/javascript"), ("/page/style.css", "text/css")):
            page = await get(started, path)
            assert page.status == 200 and page.headers["content-type"].startswith(kind)
        for path in ("/api/../healthz", "/api/x/../../../../pods", "/page/..%2f..%2fpods", "/page/missing"):
            assert (await get(started, path)).status == 404, path
        assert (await get(started, "/api/snapshot", cookie=False)).status == 403
        assert (await get(started, "/api/snapshot", host="evil.example")).status == 421


async def test_changes_come_through_and_end_with_the_right(cluster: World, tmp_path: Path) -> None:
    async with forwarded(cluster, tmp_path, "ml-user") as (_, started):
        packed = (await get(started, "/api/snapshot")).body
        version = msgspec.json.decode(gzip.decompress(packed))["version"]
        reader, writer = await asyncio.open_connection("127.0.0.1", started.port, limit=1 << 22)
        head = f"GET /api/changes?after={version} HTTP/1.1\r\nHost: 127.0.0.1:{started.port}\r\n"
        writer.write(f"{head}Cookie: gpuplane-{started.port}={started.key}\r\n\r\n".encode())
        try:
            async with asyncio.timeout(PATIENCE):
                await held(cluster, "train-2", "n1", 2, 100)
                while b'"n1"' not in (line := await reader.readline()):
                    assert line, "the stream has ended"
                await cluster.client.delete(built_in(f"{RBAC}/v1", "RoleBinding"), "ml-user-view", "ml")
                while b"event: again" not in (line := await reader.readline()):
                    assert line, "the stream has ended"
        finally:
            writer.transport.abort()


async def test_a_token_that_is_no_longer_accepted_is_named(cluster: World, tmp_path: Path) -> None:
    async with forwarded(cluster, tmp_path, "ml-user") as (inner, started):
        inner.process.terminate()
        await inner.process.wait()
        answer = await get(started, "/api/snapshot")
        assert answer.status == 503 and "error trying to reach service" in answer.json["message"]


async def test_a_user_who_may_not_reach_it_gets_the_local_one(cluster: World, tmp_path: Path) -> None:
    async with in_cluster(cluster, tmp_path) as inner:
        await installed_service(cluster, inner.port)
        await viewer(cluster, "viewer", "view")
        (tmp_path / "config").write_text(cluster.kubeconfig("viewer"))
        async with dashboard(tmp_path) as started:
            assert "gpuplane:dashboard-viewer" in await said(started)
            assert "with your rights" in await said(started)
            assert (await get(started, "/api/viewer")).json == {}


async def test_a_user_with_a_certificate_or_password_gets_the_local_one(cluster: World, tmp_path: Path) -> None:
    """The API server passes no certificate on, so the cluster's dashboard could not know the user."""
    async with in_cluster(cluster, tmp_path) as inner:
        await installed_service(cluster, inner.port)
        config = json.loads(cluster.kubeconfig())
        config["users"][0]["user"] = certificate_of(cluster)
        (tmp_path / "config").write_text(json.dumps(config))
        async with dashboard(tmp_path) as started:
            assert "no token that the cluster's dashboard could ask about" in await said(started)
            assert (await get(started, "/api/viewer")).json == {}


def certificate_of(cluster: World) -> dict[str, str]:
    """An administrator's credentials in a kubeconfig: a client certificate."""
    now = datetime.now(UTC)
    place = cluster.server.authority
    authority = load(place.read_bytes(), place.with_name("ca.key").read_bytes())
    valid = Validity(now - timedelta(minutes=1), now + timedelta(hours=1))
    made = issue(authority, "carol", valid, group="system:masters", usages=(CLIENT,))
    parts = {"client-certificate-data": made.certificate_pem, "client-key-data": made.key_pem}
    return {name: base64.b64encode(pem).decode() for name, pem in parts.items()}


async def test_with_local_the_command_serves_it_itself(cluster: World, tmp_path: Path) -> None:
    async with in_cluster(cluster, tmp_path) as inner:
        await installed_service(cluster, inner.port)
        async with dashboard(tmp_path, "--local") as started:
            assert "with your rights" in await said(started)
            answer = await get(started, "/api/snapshot")
            assert SECRET_POD.encode() in gzip.decompress(answer.body)


async def test_the_role_of_viewers_leads_to_the_dashboard_alone(cluster: World, tmp_path: Path) -> None:
    await may_reach(cluster, "ml-user")
    config = tmp_path / "ml"
    config.write_text(cluster.kubeconfig("ml-user"))
    async with Client.connect(config) as client:
        base = f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}"
        for path in (
            f"{base}/services/gpu-operator:8080/proxy/metrics",
            f"{base}/services/https:gpuplane-admission:443/proxy/",
            f"{base}/pods/any:9400/proxy/metrics",
            f"{base}/pods",
            f"{base}/secrets/{names.DASHBOARD_SECRET}",
            f"{base}/services/https:{names.DASHBOARD_NAME}:https",
        ):
            assert (await client.answer(path)).status == 403, path

    async def found() -> bool:
        async with Client.connect(config) as again:
            path = f"{base}/services/https:{names.DASHBOARD_NAME}:https/proxy/healthz"
            return (await again.answer(path)).status == 404

    await until(found, seconds=PATIENCE)
