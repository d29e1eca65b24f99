"""The dashboard in a pod of a real kubelet: its claim outlives it, and the API server leads to its Service."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpulab.kubernetes.node import KubernetesNode
from gpuplane import names
from kubekit.api.core import Pod
from kubekit.kube import Client, NotFound
from packages.gpuplane.tests.dashboard.scene import dashboard, get
from tests.support.realkube.inventory import difference, inventory
from tests.support.realkube.life import account_config, until_as
from tests.support.realkube.watching import PATIENCE_S, until_objects
from tests.support.until import until

FOLDER, CLAIM, VIEWER = "/srv/dashboard-sums", "dashboard-sums", "dashboard-viewer"
VOLUME = "/api/v1/persistentvolumes"
CLAIMS = f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}/persistentvolumeclaims"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def gpuplane(node: KubernetesNode, *arguments: str) -> str:
    """Return the output of a command with the administrator's certificate."""
    environment = {**os.environ, "KUBECONFIG": str(node.plane.kubeconfig), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "gpuplane", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"gpuplane {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
async def admin(machine: KubernetesNode) -> AsyncIterator[Client]:
    """`gpuplane install --dashboard --dashboard-claim`, and a folder of the machine as the volume of the claim."""
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [machine.name]}
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": names.OPERATOR_NAMESPACE, "name": CLAIM},
        "local": {"path": FOLDER},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
    }
    subject = {"kind": "ServiceAccount", "name": VIEWER, "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    async with Client.connect(machine.plane.kubeconfig) as client:
        await clear(machine, client)  # a run that was cut short left its own
        before = await inventory(client)
        machine.run("mkdir", "-p", FOLDER)
        try:
            root = f"hostPaths.rootFS={machine.host_root}"
            await asyncio.to_thread(
                gpuplane, machine, "install", "-q", "--dashboard", "--dashboard-claim", CLAIM, "--set", root
            )
            await client.request("POST", VOLUME, None, {"metadata": {"name": CLAIM}, "spec": volume})
            await client.request(
                "POST", CLAIMS, None, {"metadata": {"name": CLAIM}, "spec": {**claim, "volumeName": CLAIM}}
            )
            await client.request("POST", ACCOUNTS, None, {"metadata": {"name": VIEWER}})
            await client.request(
                "POST", BINDINGS, None, {"metadata": {"name": VIEWER}, "roleRef": role, "subjects": [subject]}
            )
            yield client
        finally:
            await clear(machine, client)
        assert difference(before, await until_as(client, before)) == ""


async def clear(node: KubernetesNode, client: Client) -> None:
    """Remove the installation, the claim with its volume, and the viewer; those of them that there are."""
    with contextlib.suppress(AssertionError):  # nothing is installed
        await asyncio.to_thread(gpuplane, node, "uninstall", "-q")
    # uninstall leaves the namespace, since a claim of the administrator's is in it.
    space = CLAIMS.rpartition("/")[0]
    for path in (f"{CLAIMS}/{CLAIM}", f"{VOLUME}/{CLAIM}", f"{ACCOUNTS}/{VIEWER}", f"{BINDINGS}/{VIEWER}", space):
        with contextlib.suppress(NotFound):
            await client.request("DELETE", path)
    node.run("rm", "-rf", FOLDER)


async def serving(client: Client, *gone: str) -> str:
    """The name of the dashboard's pod once it is ready, other than those that are gone."""

    def found(pods: list[Pod]) -> str:
        return next(
            (
                pod.metadata.name
                for pod in pods
                if pod.metadata.name not in gone
                and any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)
            ),
            "",
        )

    labels = f"app.kubernetes.io/name={names.DASHBOARD_NAME}"
    name: str = await until_objects(client, Pod, found, namespace=names.OPERATOR_NAMESPACE, labels=labels)
    return name


async def stored(node: KubernetesNode) -> dict[str, Any]:
    """`gpuplane cost`, once it is answered by the store: the Service follows its pod a moment later."""
    found: dict[str, Any] = {}

    async def answered() -> bool:
        found.update(json.loads(await asyncio.to_thread(gpuplane, node, "cost", "-o", "json")))
        return bool(found["sourceKind"] == "store")

    await until(answered, what="the store answers", seconds=PATIENCE_S, ignored=AssertionError)
    return found


async def test_its_sums_outlive_its_pod_and_users_reach_it_through_the_api_server(
    machine: KubernetesNode, admin: Client, tmp_path: Path
) -> None:
    first = await serving(admin)
    began = (await stored(machine))["begins"]
    config = await account_config(machine.plane, admin, "default", VIEWER)
    (tmp_path / "config").write_text(config.read_text())
    async with dashboard(tmp_path) as started:
        assert (await get(started, "/api/viewer")).json["user"] == f"system:serviceaccount:default:{VIEWER}"
        packed = msgspec.json.decode(gzip.decompress((await get(started, "/api/snapshot")).body))
        assert list(packed["data"]["nodes"]) == [machine.name]
    assert "history.sqlite" in machine.run("ls", FOLDER).stdout
    await admin.delete(Pod, first, names.OPERATOR_NAMESPACE)
    await serving(admin, first)
    assert (await stored(machine))["begins"] == began
