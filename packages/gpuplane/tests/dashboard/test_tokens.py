"""Tokens of the cluster's dashboard that end, are revoked or stolen; sessions of browsers; requests of other sites."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

import pytest

from gpuplane import names
from gpuplane.dashboard.connections import MOST_CONNECTIONS
from gpuplane.dashboard.sessions import COOKIE
from kubekit.api.core import ServiceAccount
from kubekit.api.kinds import built_in
from kubekit.kube import Client
from packages.gpuplane.tests.dashboard.in_cluster import (
    PATIENCE,
    RBAC,
    InCluster,
    bind,
    in_cluster,
    unverified,
)
from packages.gpuplane.tests.dashboard.scene import Answer
from tests.support.extender_world import World
from tests.support.until import until
from tinykube.apiserver.account_tokens import LEEWAY_S


async def account(world: World, name: str) -> None:
    """A service account in the namespace ml, which may view that."""
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "ml"}}
    await world.client.create(body, resource=ServiceAccount.RESOURCE)
    await bind(world, {"kind": "ServiceAccount", "name": name, "namespace": "ml"}, "view", "ml")


def token_of(world: World, name: str, seconds: int = 3600, audiences: tuple[str, ...] = ()) -> str:
    """A token of the account that is accepted for some seconds."""
    found = world.server.registry.get("serviceaccounts", "ml", name)
    token, _ = world.server.extensions.identity.accounts.issue(found, seconds - LEEWAY_S, audiences=audiences)
    return token


async def ended(reader: asyncio.StreamReader) -> bytes:
    """All that a stream brings until the server ends it."""
    found = b""
    async with asyncio.timeout(PATIENCE):
        while data := await reader.read(1 << 16):
            found += data
    return found


async def test_a_stream_ends_with_its_token(page: InCluster, cluster: World) -> None:
    """The token expires, another one is revoked: their streams end, and nothing is answered."""
    await account(cluster, "short")
    await account(cluster, "revoked")
    lasting = token_of(cluster, "revoked")
    version = (await page.snapshot(lasting))["version"]
    async with page.stream(token_of(cluster, "short", 30), version) as short, page.stream(lasting, version) as other:
        assert b"event: again" in await ended(short)
        await cluster.client.delete(ServiceAccount, "revoked", "ml")
        assert b"event: again" in await ended(other)
    for token in (token_of(cluster, "short", -5), lasting):
        answer = await page.get("/api/snapshot", token)
        assert answer.status == 401 and "log in again" in answer.json["cure"]


async def test_a_token_for_another_server_is_not_accepted(page: InCluster, cluster: World) -> None:
    """As one that a thief has from a pod that talks to its own service."""
    await account(cluster, "robot")
    assert (await page.get("/api/snapshot", token_of(cluster, "robot"))).status == 200
    assert (await page.get("/api/snapshot", token_of(cluster, "robot", audiences=("vault",)))).status == 401


async def test_a_right_that_is_taken_away_ends_the_stream(page: InCluster, cluster: World) -> None:
    version = (await page.snapshot("ml-user"))["version"]
    async with page.stream("ml-user", version) as reader:
        where = built_in(f"{RBAC}/v1", "RoleBinding")
        await cluster.client.delete(where, "ml-user-view", "ml")
        assert b"event: again" in await ended(reader)
    assert list((await page.snapshot("ml-user"))["data"]["nodes"]) == ["node 1", "node 2"]
    assert (await page.get("/api/pod/ml/train", "ml-user")).status == 403


async def test_the_authorization_header_serves_too(page: InCluster) -> None:
    answer = await page.get("/api/viewer", headers={"Authorization": "Bearer ml-user"})
    assert answer.json == {"user": "ml-user", "session": False}


# -- sessions ----------------------------------------------------------------------------------------------------------


async def log_in(page: InCluster, token: str, headers: Mapping[str, str] | None = None) -> Answer:
    """Send the form of the log-in page as a browser does."""
    own = {"Origin": f"https://127.0.0.1:{page.port}", "Content-Type": "application/x-www-form-urlencoded"}
    return await page.ask("POST", "/login", urlencode({"token": token}), {**own, **(headers or {})})


def cookie_of(answer: Answer) -> str:
    return answer.headers["set-cookie"].partition(";")[0]


async def test_a_browser_logs_in_and_out(page: InCluster) -> None:
    assert b"<form" in (await page.get("/login")).body
    answer = await log_in(page, "ml-user")
    assert (answer.status, answer.headers["location"]) == (303, "/")
    said = answer.headers["set-cookie"]
    assert said.startswith(f"{COOKIE}=") and "ml-user" not in said
    for word in ("HttpOnly", "Secure", "SameSite=strict", "Path=/"):
        assert word in said
    own = {"Cookie": cookie_of(answer)}
    assert (await page.get("/api/viewer", headers=own)).json == {"user": "ml-user", "session": True}
    assert (await page.get("/", headers=own)).status == 200
    answer = await page.ask("POST", "/logout", headers={**own, "Origin": f"https://127.0.0.1:{page.port}"})
    assert answer.status == 303
    assert (await page.get("/api/viewer", headers=own)).status == 401


async def test_a_wrong_token_opens_no_session(page: InCluster) -> None:
    for token in ("wrong", "", "x" * 20_000, "a\r\nSet-Cookie: b=c", "<script>"):
        answer = await log_in(page, token)
        assert answer.status == 403 and "set-cookie" not in answer.headers
        assert b"does not accept this token" in answer.body and b"<script>" not in answer.body


async def test_pages_of_other_sites_cannot_log_in_or_out(page: InCluster) -> None:
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        answer = await log_in(page, "ml-user", headers)
        assert answer.status == 403 and "set-cookie" not in answer.headers, headers
    cookie = cookie_of(await log_in(page, "ml-user"))
    foreign = {"Cookie": cookie, "Origin": "https://evil.example"}
    assert (await page.ask("POST", "/logout", headers=foreign)).status == 403
    assert (await page.get("/api/viewer", headers={"Cookie": cookie})).status == 200


async def test_a_name_of_another_site_that_resolves_to_it_gets_nothing(cluster: World, tmp_path: Path) -> None:
    async with in_cluster(cluster, tmp_path, "--host", "gpus.example.com") as page:
        cookie = {"Cookie": cookie_of(await log_in(page, "ml-user"))}
        service = f"{names.DASHBOARD_NAME}.{names.OPERATOR_NAMESPACE}.svc"
        imitated = (f"{service}.evil.example", f"{service}evil.example")
        for host in ("evil.example", "gpus.example.com.evil.example", "", "localhost.evil.example", "a b", *imitated):
            for path in ("/", "/login", "/api/snapshot", "/page/app.js"):
                assert (await page.get(path, headers={**cookie, "Host": host})).status in (400, 421), (host, path)
        here = (service, f"{service}.cluster.local", "[::1]:8443")
        for host in ("gpus.example.com", "GPUS.example.com:443", "localhost:8443", *here):
            assert (await page.get("/api/viewer", headers={**cookie, "Host": host})).status == 200, host


async def test_bodies_that_never_end_leave_connections_to_others(page: InCluster) -> None:
    """Without any token: as many log-ins as there are connections, each with a body that does not come."""
    context = unverified()
    host = f"Host: 127.0.0.1:{page.port}\r\nOrigin: https://127.0.0.1:{page.port}\r\n"
    head = f"POST /login HTTP/1.1\r\n{host}Expect: 100-continue\r\nContent-Length: 100\r\n\r\n"
    writers = []
    try:
        async with asyncio.timeout(PATIENCE):
            for _ in range(MOST_CONNECTIONS):
                reader, writer = await asyncio.open_connection("127.0.0.1", page.port, ssl=context)
                writers.append(writer)
                writer.write(head.encode())
                assert b"100" in await reader.readline()  # the server waits for the body
        for path in ("/healthz", "/api/snapshot", "/readyz"):
            assert (await page.get(path, "ml-user")).status == 200
        assert [line for line in page.log if "Traceback" in line] == []
    finally:
        for writer in writers:
            writer.transport.abort()
        for writer in writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def test_an_upgrade_to_a_websocket_is_not_made(page: InCluster) -> None:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "x" * 22 + "==",
        "Sec-WebSocket-Version": "13",
    }
    assert (await page.get("/api/snapshot", headers=upgrade)).status == 401
    assert [line for line in page.log if "Traceback" in line] == []


async def test_every_answer_forbids_scripts_frames_and_files_of_others(page: InCluster) -> None:
    for path in ("/", "/login", "/api/snapshot", "/page/app.js", "/page/missing", "/healthz"):
        headers = (await page.get(path, "ml-user")).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers
    assert (await page.ask("DELETE", "/api/snapshot")).status == 405


async def test_the_api_server_that_does_not_answer_lets_no_stranger_in(page: InCluster, cluster: World) -> None:
    """A viewer who was known stays for a while, with a page that says how old it is."""
    version = (await page.snapshot("ml-user"))["version"]
    async with page.stream("ml-user", version) as reader:
        await cluster.server.stop()

        async def hindered() -> bool:
            line = await reader.readline()
            return line.startswith(b"data: ") and b'"why":""' not in line and b'"why":' in line

        await until(hindered, seconds=PATIENCE, poll=0)
        answer = await page.get("/api/snapshot", "everything")
        assert answer.status == 503 and b"n1" not in answer.body


async def test_its_certificate_is_for_its_service_and_comes_from_the_secret(page: InCluster, cluster: World) -> None:
    import ssl

    from kubekit.api.core import Secret

    client: Client = cluster.client
    secret = await client.get(Secret, names.DASHBOARD_SECRET, names.OPERATOR_NAMESPACE)
    context = ssl.create_default_context(cadata=secret.data["ca.crt"].decode())
    service = f"{names.DASHBOARD_NAME}.{names.OPERATOR_NAMESPACE}.svc"
    for name in (service, "localhost"):
        _, writer = await asyncio.open_connection("127.0.0.1", page.port, ssl=context, server_hostname=name)
        writer.transport.abort()
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection("127.0.0.1", page.port, ssl=context, server_hostname="evil.example")


async def test_callers_who_say_nothing_keep_no_viewer_out(page: InCluster) -> None:
    """More of them than there may be handshakes and connections, at first and after the handshake."""
    silent = []
    try:
        for tls in (None, unverified()):
            for _ in range(250):
                with contextlib.suppress(OSError):  # it gave way to another one
                    silent.append(await asyncio.open_connection("127.0.0.1", page.port, ssl=tls))
            for _ in range(3):
                assert (await page.get("/api/viewer", "ml-user")).status == 200
        assert len(list(Path(f"/proc/{page.process.pid}/fd").iterdir())) < 400
    finally:
        for _, writer in silent:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for _, writer in silent), return_exceptions=True)
