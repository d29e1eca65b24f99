"""CPU and memory of an embedded cluster's pods, as users see them with kubectl, and an autoscaler that follows them."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import Any

import pytest

from kubekit.api.kinds import built_in
from kubekit.api.quantity import parse_quantity
from kubekit.kube import Client
from tests.support.until import until
from tinykube.cluster import MachineSpec

DEPLOYMENT = built_in("apps/v1", "Deployment")
AUTOSCALER = built_in("autoscaling/v2", "HorizontalPodAutoscaler")
PATIENCE_SECONDS = 120.0
kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")


@pytest.fixture
async def cluster(embedded_cluster: Any) -> Any:
    return await embedded_cluster(nodes=(MachineSpec(name="n1", machine="t4-ubuntu22"),))


def deployment(name: str, command: str, replicas: int = 1) -> dict[str, Any]:
    container = {"name": "main", "image": "busybox", "command": ["sh", "-c", command]}
    container["resources"] = {"requests": {"cpu": "100m"}}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    template["spec"] |= {"terminationGracePeriodSeconds": 0}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


async def run(cluster: Any, *words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "kubectl",
        f"--kubeconfig={cluster.kubeconfig}",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return output.decode()


@kubectl
async def test_top_shows_pods_and_nodes(cluster: Any) -> None:
    async with Client.connect(cluster.kubeconfig) as client:
        await client.create(deployment("busy", "while :; do :; done"), namespace="default")

    async def is_measured() -> list[str]:
        lines = (await run(cluster, "top", "pods", "--no-headers")).split()
        return lines if lines and lines[0].startswith("busy-") else []

    _, cpu, memory = await until(is_measured, seconds=PATIENCE_SECONDS)
    assert parse_quantity(cpu) > 0
    assert parse_quantity(memory) >= 0
    lines = (await run(cluster, "top", "nodes", "--no-headers")).split()
    assert lines[0] == "n1"
    assert parse_quantity(lines[1]) >= parse_quantity("1m")
    assert "main" in await run(cluster, "top", "pods", "--containers")
    assert "No resources found" in await run(cluster, "top", "pods", "-l", "app=none")
    asks = ("auth", "can-i", "list", "pods.metrics.k8s.io", "--as=viewer")
    assert "no" in (await run(cluster, *asks)).split()
    await run(cluster, "create", "clusterrolebinding", "viewers", "--clusterrole=view", "--user=viewer")
    assert "yes" in (await run(cluster, *asks)).split()
    summary = json.loads(await run(cluster, "get", "--raw", "/api/v1/nodes/n1/proxy/stats/summary"))
    assert summary["node"]["nodeName"] == "n1"
    assert "v1beta1.metrics.k8s.io" in await run(cluster, "get", "apiservices")


async def test_an_autoscaler_follows_the_cpu_of_its_pods(cluster: Any) -> None:
    """From one busy pod to more, since each uses more than a tenth of a core; the machine bounds how much."""
    async with Client.connect(cluster.kubeconfig) as client:
        await client.create(deployment("busy", "while :; do :; done"), namespace="default")
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "busy"}
        cpu = {"name": "cpu", "target": {"type": "AverageValue", "averageValue": "20m"}}
        spec = {"maxReplicas": 3, "scaleTargetRef": target, "metrics": [{"type": "Resource", "resource": cpu}]}
        body = {"metadata": {"name": "busy"}, "spec": spec}
        made = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", **body}
        await client.create(made, namespace="default", resource=AUTOSCALER)

        async def status() -> dict[str, Any]:
            path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/busy"
            return dict(json.loads(await client.request("GET", path)).get("status") or {})

        async def has_grown() -> bool:
            return (await status()).get("desiredReplicas") == 3

        await until(has_grown, seconds=PATIENCE_SECONDS)
        found = await status()
        conditions = {one["type"]: one["reason"] for one in found["conditions"]}
        assert conditions["ScalingActive"] == "ValidMetricFound"
