"""The manifests of gpu-manager and gpu-admission, verbatim, next to gpuplane on an embedded cluster.

Its scheduler reads gpu-admission's own policy file, which names the extender by its Service.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuplane import names
from kubekit.api.core import Node, Pod
from kubekit.api.kinds import built_in
from kubekit.kube import Client
from tests.support.until import until, until_objects
from tinykube.cluster import MachineSpec

SHARED = Path(__file__).parents[5] / "shared" / "manifests" / "gpu-manager"
ENDPOINTS = built_in("v1", "Endpoints")
PATIENCE_SECONDS = 60.0
pytestmark = pytest.mark.skipif(not SHARED.exists(), reason="no shared manifests beside this checkout")


@pytest.fixture
async def client(embedded_cluster: Any) -> AsyncIterator[Client]:
    """The administrator's, on a cluster with gpuplane, gpu-manager's manifests and a quota of other namespaces."""
    policy = str(SHARED / "scheduler-policy-config.json")
    node = MachineSpec(name="n1", machine="a10g-rhel9")
    handle = await embedded_cluster(nodes=(node,), scheduler_config=policy)
    command = [sys.executable, "-m", "gpuplane", "install", "-q", "--wait", "--timeout", "60s"]
    environment = {**os.environ, "KUBECONFIG": str(handle.kubeconfig)}
    done = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    async with Client.connect(handle.kubeconfig) as client:
        await client.patch(Node, "n1", {"metadata": {"labels": {names.SHARE_LABEL: "enable"}}})
        for name in ("gpu-manager.yaml", "gpuquota.yaml", "gpu-admission.yaml"):
            for manifest in documents(name):
                await client.create(manifest, resource=built_in(manifest["apiVersion"], manifest["kind"]))
        yield client


def documents(name: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all((SHARED / name).read_text()) if document]


async def behind(client: Client, service: str) -> str:
    """The address of the pod behind a Service, once one is ready."""

    async def address() -> str:
        found = await client.request("GET", ENDPOINTS.path("kube-system", service))
        subsets = yaml.safe_load(found).get("subsets") or [{}]
        return str((subsets[0].get("addresses") or [{"ip": ""}])[0]["ip"])

    return str(await until(address, seconds=PATIENCE_SECONDS))


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as reply:
        return str(reply.read().decode())


async def test_gpu_managers_manifests_work_verbatim_beside_gpuplane(client: Client) -> None:
    metrics, extender = [await behind(client, name) for name in ("gpu-manager-metric", "gpu-quota-admission")]
    version = f"http://{extender}:3456/version"  # its manifest has no probe, so it may not listen yet
    assert await until(lambda: asyncio.to_thread(get, version), ignored=OSError, seconds=PATIENCE_SECONDS)
    for manifest in (*documents("pods.yaml"), *documents("vcuda-test.yaml")):
        kind = built_in(manifest["apiVersion"], manifest["kind"])
        await client.create(manifest, namespace="default", resource=kind)

    def running(pods: list[Pod]) -> Any:
        assigned = [pod.metadata.annotations.get(names.GPU_ASSIGNED_ANNOTATION) == "true" for pod in pods]
        return all(assigned) and [pod.status.phase for pod in pods] == ["Running"] * 3

    await until_objects(client, Pod, running, namespace="default", seconds=PATIENCE_SECONDS)

    async def of_the_share() -> bool:
        text = await asyncio.to_thread(get, f"http://{metrics}:5678/metric")
        rows = [
            row for row in text.splitlines() if row.startswith("container_request_gpu_memory") and "part-card" in row
        ]
        return bool(rows) and float(rows[0].rpartition(" ")[2]) == 5120.0

    await until(of_the_share, ignored=OSError, seconds=PATIENCE_SECONDS)
