"""The cluster's dashboard on a real API server: its account is enough, viewers see their own pods, nothing of it stays.

Its process runs here, with a token of its account, and a pod without a machine stands for it in its Service.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpulab.kubernetes.control_plane import ControlPlane
from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from kubekit.api.core import Pod
from kubekit.kube import AlreadyExists, Client, NotFound
from packages.gpuplane.tests.dashboard.in_cluster import InCluster, dashboard_process
from packages.gpuplane.tests.dashboard.scene import dashboard, get
from packages.gpuplane.tests.kubernetes.test_explanation import node
from tests.support.extender_world import gpu_pod
from tests.support.realkube.inventory import difference
from tests.support.realkube.life import (
    PATIENCE_S,
    account_config,
    gpuplane,
    settled,
    take_away,
    until_absent,
    until_as,
)
from tests.support.until import until

MINE, SECRET, NODE = "board-mine", "board-secret", "explain-n1"
TENANTS = (MINE, SECRET)
RBAC = "rbac.authorization.k8s.io"
DASHBOARD_POD = f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}/pods/dashboard-here"


async def clear(plane: ControlPlane, client: Client) -> None:
    """Remove the installation, the node, and the tenants; those of them that there are."""
    for path in (f"/api/v1/namespaces/{SECRET}/pods/forecast", f"/api/v1/namespaces/{MINE}/pods/tune", DASHBOARD_POD):
        with contextlib.suppress(NotFound):
            await client.request("DELETE", path, None, {"gracePeriodSeconds": 0})
    await take_away(plane, client)
    await until_absent(
        client, *(f"/api/v1/{path}" for path in (f"nodes/{NODE}", *map("namespaces/{}".format, TENANTS)))
    )


@pytest.fixture
async def admin(control_plane: ControlPlane) -> AsyncIterator[Client]:
    """`gpuplane install --dashboard`, two tenants with an account each, and a GPU that one of them holds."""
    async with Client.connect(control_plane.kubeconfig) as client:
        await clear(control_plane, client)  # a run that was cut short left its own
        before = await settled(client)
        await asyncio.to_thread(gpuplane, control_plane, "install", "--dashboard", "-q")
        for name in TENANTS:
            await client.request("POST", "/api/v1/namespaces", None, {"metadata": {"name": name}})
            accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
            for account in ("default", "robot"):
                with contextlib.suppress(AlreadyExists):  # the controller manager makes the first one too
                    await client.request("POST", accounts, None, {"metadata": {"name": account}})
            await bind(client, name, "view", name)
        await bind(client, MINE, "cluster-admin", "")
        await client.request("POST", "/api/v1/nodes", None, {**node(), "metadata": labelled()})
        gpus = [{"index": 0, "uuid": "GPU-0", "model": "Tesla T4", "memoryMib": 15360}]
        await client.apply({"metadata": {"name": NODE}, "status": {"gpus": gpus}}, "test", resource=GPUNode.RESOURCE)
        tolerate = [{"key": "example.com/none", "operator": "Exists"}]
        for pod in (
            gpu_pod("forecast", (90, 8), namespace=SECRET, nodeName=NODE, tolerations=tolerate),
            gpu_pod("tune", (40, 8), namespace=MINE, nodeSelector={"kubernetes.io/hostname": NODE}),
        ):
            await client.request("POST", f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", None, pod)
        try:
            yield client
        finally:
            await clear(control_plane, client)
            after = await until_as(client, before)
            assert not (left := difference(before, after)), f"left behind:\n{left}"


def labelled() -> dict[str, Any]:
    return {"name": NODE, "labels": {"kubernetes.io/hostname": NODE, names.GPU_PRESENT_LABEL: "true"}}


async def bind(client: Client, tenant: str, role: str, namespace: str) -> None:
    """Bind a role to a tenant's account `robot`, in the namespace, or to `default` in the whole cluster."""
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    subject = {"kind": "ServiceAccount", "name": "robot" if namespace else "default", "namespace": tenant}
    body = {
        "apiVersion": f"{RBAC}/v1",
        "kind": kind,
        "metadata": {"name": "board-test"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    }
    where = f"namespaces/{namespace}/rolebindings" if namespace else "clusterrolebindings"
    with contextlib.suppress(NotFound):
        await client.request("DELETE", f"/apis/{RBAC}/v1/{where}/board-test")
    await client.request("POST", f"/apis/{RBAC}/v1/{where}", None, body)


def own_address() -> str:
    """An address of this machine other than loopback, which a Service may not lead to. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(one.getsockname()[0])


def token_in(config: Path) -> str:
    return str(json.loads(config.read_text())["users"][0]["user"]["token"])


async def everything(page: InCluster, token: str) -> dict[str, bytes]:
    paths = ("/api/waiting", "/api/mine", f"/api/node/{NODE}", f"/api/pod/{MINE}/tune", "/api/pools", "/api/upgrades")
    found = {path: (await page.get(path, token)).body for path in paths}
    return {**found, "/api/snapshot": msgspec.json.encode(await page.snapshot(token))}


async def test_viewers_of_a_real_cluster(control_plane: ControlPlane, admin: Client, tmp_path: Path) -> None:
    """One life for all, since an installation on a real API server takes its time."""
    own = await account_config(control_plane, admin, names.OPERATOR_NAMESPACE, names.DASHBOARD_NAME)
    mine = await account_config(control_plane, admin, MINE, "robot")
    token, boss = token_in(mine), token_in(await account_config(control_plane, admin, MINE, "default"))
    try:
        async with dashboard_process(own, address=own_address()) as page:

            async def may_ask() -> bool:
                """The controller manager aggregates roles a moment after they are made."""
                return (await page.get(f"/api/pod/{MINE}/tune", token)).status == 200

            await until(may_ask, seconds=PATIENCE_S)
            answers = await everything(page, token)
            assert {path for path, body in answers.items() if SECRET.encode() in body or b"forecast" in body} == set()
            data = msgspec.json.decode(answers["/api/snapshot"])["data"]
            assert (data["totals"]["held"], data["totals"]["waiting"]) == (0.9, 1)
            assert [one["pod"] for one in data["waiting"]] == [f"{MINE}/tune"] and list(data["nodes"]) == ["node 1"]
            assert (await page.get(f"/api/pod/{SECRET}/forecast", token)).status == 403
            answers = await everything(page, boss)
            assert f"{SECRET}/forecast".encode() in answers[f"/api/node/{NODE}"]
            assert list(msgspec.json.decode(answers["/api/snapshot"])["data"]["nodes"]) == [NODE]
            assert (await page.get("/api/snapshot", token_in(own).rpartition(".")[0] + ".stolen")).status == 401

            await through_the_api_server(control_plane, admin, page, mine, tmp_path)

            version = (await page.snapshot(token))["version"]
            async with page.stream(token, version) as reader:
                await admin.request("DELETE", f"/api/v1/namespaces/{MINE}/serviceaccounts/robot")
                async with asyncio.timeout(PATIENCE_S):
                    while b"event: again" not in (line := await reader.readline()):
                        assert line, "the stream has ended"
            assert (await page.get("/api/snapshot", token)).status == 401
            assert [line for line in page.log if "forbidden" in line.lower() or token in line] == []
    finally:
        where = f"/apis/{RBAC}/v1/clusterrolebindings/board-test"
        await admin.request("DELETE", where)


async def through_the_api_server(
    plane: ControlPlane, admin: Client, page: InCluster, config: Path, folder: Path
) -> None:
    """The command of a tenant who has the role of viewers, and of one who has it not."""
    pod = {
        "metadata": {"name": "dashboard-here", "labels": {"app.kubernetes.io/name": names.DASHBOARD_NAME}},
        "spec": {
            "nodeName": NODE,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "i", "ports": [{"name": "https", "containerPort": page.port}]}],
        },
    }
    await admin.request("POST", DASHBOARD_POD.rpartition("/")[0], None, pod)
    status = {
        "phase": "Running",
        "podIP": page.address,
        "podIPs": [{"ip": page.address}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    await admin.patch(Pod, "dashboard-here", {"status": status}, names.OPERATOR_NAMESPACE, subresource="status")
    service = f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}/services/https:{names.DASHBOARD_NAME}:https/proxy/healthz"

    async def led() -> bool:
        return (await admin.answer(service)).status == 200

    await until(led, what="the Service leads to the dashboard", seconds=PATIENCE_S)
    async with Client.connect(config) as client:
        assert (await client.answer(service)).status == 403
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "board-test"},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "gpuplane:dashboard-viewer"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": MINE}],
    }
    bindings = f"/apis/{RBAC}/v1/namespaces/{names.OPERATOR_NAMESPACE}/rolebindings"
    await admin.request("POST", bindings, None, binding)
    try:
        async with Client.connect(config) as client:

            async def reached() -> bool:
                return (await client.answer(service)).status == 200

            await until(reached, what="the role is in force", seconds=PATIENCE_S)
        (folder / "config").write_text(config.read_text())
        async with dashboard(folder) as started:
            answer = await get(started, "/api/viewer")
            assert answer.json == {"user": f"system:serviceaccount:{MINE}:robot", "session": False}
            packed = (await get(started, "/api/snapshot")).body
            document = msgspec.json.decode(gzip.decompress(packed))
            assert [one["pod"] for one in document["data"]["waiting"]] == [f"{MINE}/tune"]
            assert (await get(started, "/page/app.js")).status == 200
            reader, writer = await asyncio.open_connection("127.0.0.1", started.port)
            try:
                head = f"GET /api/changes?after={document['version']} HTTP/1.1\r\nHost: 127.0.0.1:{started.port}\r\n"
                writer.write(f"{head}Cookie: gpuplane-{started.port}={started.key}\r\n\r\n".encode())
                async with asyncio.timeout(PATIENCE_S):
                    while not (line := await reader.readline()).startswith(b"event: state"):
                        assert line, "the stream has ended"
            finally:
                writer.transport.abort()
    finally:
        await admin.request("DELETE", f"{bindings}/board-test")
