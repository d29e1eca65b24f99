"""The cluster's dashboard as a process with its account, and viewers with tokens; the API server is in this process."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import os
import re
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gpuplane import names
from gpuplane.operator.installation import DASHBOARD, manifests, resource_of
from kubekit.api.core import Namespace
from kubekit.api.kinds import built_in
from packages.gpuplane.tests.cli.status_clusters import installed, report
from packages.gpuplane.tests.dashboard.scene import Answer, held, node
from tests.support.aggregated_roles import write_aggregated_roles
from tests.support.extender_world import World, gpu_pod
from tests.support.until import until
from tinykube.apiserver import User
from tinykube.apiserver.identity import service_account_user

RBAC = "rbac.authorization.k8s.io"
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Secret")
PATIENCE = 90.0
SERVING = re.compile(r"serving port=(\d+)")
SECRET_SPACE = "payroll"  # a tenant whose name no other tenant may learn
SECRET_POD = "forecast"


class InCluster(NamedTuple):
    """A dashboard: its port, its process, and the lines of its log so far."""

    port: int
    process: asyncio.subprocess.Process
    log: list[str]
    address: str = "127.0.0.1"

    async def get(self, path: str, token: str = "", headers: Mapping[str, str] | None = None) -> Answer:
        """One GET, with a token as `gpuplane dashboard` passes it on."""
        shown = {names.DASHBOARD_TOKEN_HEADER: f"Bearer {token}"} if token else {}
        return await self.ask("GET", path, headers={**shown, **(headers or {})})

    async def ask(self, method: str, path: str, body: str = "", headers: Mapping[str, str] | None = None) -> Answer:
        """One request on a connection of its own; the certificate is not verified, as by the API server's proxy."""

        def asked() -> Answer:
            connection = http.client.HTTPSConnection(self.address, self.port, timeout=PATIENCE, context=unverified())
            with contextlib.closing(connection):
                sent = {"Host": f"{self.address}:{self.port}", **(headers or {})}
                connection.request(method, path, body or None, sent)
                answer = connection.getresponse()
                return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

        return await asyncio.to_thread(asked)

    async def snapshot(self, token: str) -> dict[str, Any]:
        """The document of the first page."""
        answer = await self.get("/api/snapshot", token)
        assert answer.status == 200, (answer.status, answer.body)
        found: dict[str, Any] = msgspec.json.decode(gzip.decompress(answer.body))
        return found

    @contextlib.asynccontextmanager
    async def stream(self, token: str, after: int) -> AsyncIterator[asyncio.StreamReader]:
        """The changes after a number, for the block."""
        reader, writer = await asyncio.open_connection(self.address, self.port, ssl=unverified(), limit=1 << 22)
        try:
            head = f"GET /api/changes?after={after} HTTP/1.1\r\nHost: {self.address}:{self.port}\r\n"
            writer.write(f"{head}{names.DASHBOARD_TOKEN_HEADER}: Bearer {token}\r\n\r\n".encode())
            async with asyncio.timeout(PATIENCE):
                assert b"200" in await reader.readline()
            yield reader
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@contextlib.asynccontextmanager
async def in_cluster(world: World, folder: Path, *arguments: str) -> AsyncIterator[InCluster]:
    """The dashboard with the rights of an installation, once it is ready."""
    await install_rights(world)
    config = folder / "dashboard-account"
    config.write_text(world.kubeconfig("dashboard-account"))
    async with dashboard_process(config, *arguments) as started:
        yield started


@contextlib.asynccontextmanager
async def dashboard_process(config: Path, *arguments: str, address: str = "127.0.0.1") -> AsyncIterator[InCluster]:
    """The dashboard with the credentials of a kubeconfig, at an address of this machine, once it is ready."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpuplane", "run", "dashboard", "--port", "0", "--kubeconfig", str(config)),
        *arguments,
        env={**os.environ, "POD_IP": address},
        stderr=asyncio.subprocess.PIPE,
    )
    log: list[str] = []
    assert process.stderr is not None
    port = asyncio.get_running_loop().create_future()
    reading = asyncio.create_task(_read(process.stderr, log, port))
    try:
        async with asyncio.timeout(PATIENCE):
            started = InCluster(await port, process, log, address)

        async def ready() -> bool:
            return (await started.get("/readyz")).status == 200

        await until(ready, seconds=PATIENCE, ignored=OSError)
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        await reading


async def _read(stream: asyncio.StreamReader, log: list[str], port: asyncio.Future[int]) -> None:
    async for line in stream:
        log.append(line.decode())
        if (found := SERVING.search(log[-1])) and not port.done():
            port.set_result(int(found[1]))
    if not port.done():
        port.set_exception(AssertionError("".join(log)))


async def install_rights(world: World) -> None:
    """Apply accounts, roles and the Secret of the installation; the token "dashboard-account" is the dashboard's."""
    for manifest in (*manifests(), *manifests(DASHBOARD)):
        if manifest["kind"] in RIGHTS:
            await world.client.apply(manifest, "test", resource=resource_of(manifest))
    await write_aggregated_roles(world.client)
    account = service_account_user(names.OPERATOR_NAMESPACE, names.DASHBOARD_NAME)
    world.server.extensions.identity.add("dashboard-account", account)


async def viewer(world: World, name: str, role: str, namespace: str = "") -> None:
    """Make a user with a token of the same name, and bind a ClusterRole in one namespace or in the whole cluster."""
    world.server.extensions.identity.add(name, User(name, ("system:authenticated",)))
    await bind(world, {"apiGroup": RBAC, "kind": "User", "name": name}, role, namespace)


async def bind(world: World, subject: dict[str, str], role: str, namespace: str = "") -> None:
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    meta = {"name": f"{subject['name']}-{role}", **({"namespace": namespace} if namespace else {})}
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": kind,
        "metadata": meta,
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    }
    await world.client.apply(binding, "test", resource=built_in(f"{RBAC}/v1", kind))


@contextlib.asynccontextmanager
async def two_tenants(folder: Path) -> AsyncIterator[World]:
    """A cluster with pods of two tenants on one node, and of one on another; each has a pod that waits.

    `ml-user` and `payroll-user` may view their own namespace, `everything` the whole cluster, `nodes-only` nodes.
    """
    async with installed(folder) as world:
        for name in ("ml", SECRET_SPACE, "kube-system"):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await world.client.apply(body, "test", resource=Namespace.RESOURCE)
        for name in ("n1", "n2"):
            await node(world, name, "Tesla T4", 4, 15360)
            await report(world, name, ready=True)
        await held(world, "train", "n1", 0, 100)
        await held(world, SECRET_POD, "n1", 1, 100, SECRET_SPACE)
        await held(world, f"{SECRET_POD}-2", "n2", 0, 50, SECRET_SPACE)
        await world.pod(gpu_pod("large", whole=8, namespace="ml"))
        await world.pod(gpu_pod(f"{SECRET_POD}-large", whole=8, namespace=SECRET_SPACE))
        await install_rights(world)
        await viewer(world, "ml-user", "view", "ml")
        await viewer(world, "payroll-user", "view", SECRET_SPACE)
        await viewer(world, "everything", "cluster-admin")
        yield world
