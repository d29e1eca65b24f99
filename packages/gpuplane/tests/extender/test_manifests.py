"""The manifests that gpu-manager's users have, verbatim, on nodes that advertise its resources."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuplane import names
from gpuplane.sharing import of_pod
from kubekit.api.core import ConfigMap, Pod
from kubekit.api.kinds import built_in
from packages.gpuplane.tests.extender.test_end_to_end import on_a_node, pods_once, scheduling, verdict
from tests.support.extender_world import Running, World
from tinykube.controllers import Controllers

SHARED = Path(__file__).parents[5] / "shared" / "manifests" / "gpu-manager"
DEPLOYMENTS = built_in("apps/v1", "Deployment")
SERVICES = built_in("v1", "Service")

__all__ = ["scheduling"]  # a fixture


@pytest.fixture(autouse=True)
def _there() -> None:
    if not SHARED.exists():
        pytest.skip("no shared manifests beside this checkout")


def documents(name: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all((SHARED / name).read_text()) if document]


@pytest.mark.parametrize("gpunode", [True, False])
async def test_pods_and_deployment(cluster: World, running: Running, scheduling: None, gpunode: bool) -> None:
    controllers = asyncio.create_task(Controllers(cluster.server.registry, node_grace_s=3600).run())
    try:
        await cluster.node("one", 2, memory_mib=24576, gpunode=gpunode, labels={"nvidia-device-enable": "enable"})
        node: Any = cluster.server.registry.get("nodes", "", "one")
        assert node["status"]["allocatable"][names.VCUDA_MEMORY] == "192"
        for manifest in documents("pods.yaml"):
            await cluster.pod(manifest)
        for manifest in documents("vcuda-test.yaml"):
            await cluster.client.create(manifest, resource=DEPLOYMENTS)
        pods = {pod.metadata.name: pod for pod in await pods_once(cluster, on_a_node(3))}
        assert await verdict(cluster, running) == []
        whole, part = of_pod(pods.pop("one-card")), of_pod(pods.pop("part-card"))
        (deployed,) = (of_pod(pod) for pod in pods.values())
        assert whole is not None and part is not None and deployed is not None
        assert [(p.core, p.memory_mib) for p in whole.containers["gpu"]] == [(100, 24576)]
        assert [(p.core, p.memory_mib) for p in part.containers["gpu"]] == [(30, 5120)]
        assert [(p.core, p.memory_mib) for p in deployed.containers["tensorflow-test"]] == [(50, 8192)]
        assert part.containers["gpu"][0].uuid == deployed.containers["tensorflow-test"][0].uuid, "packed on one GPU"
        expected = "GPU-one-" if gpunode else "one/"
        assert whole.containers["gpu"][0].uuid.startswith(expected)
    finally:
        controllers.cancel()
        await asyncio.gather(controllers, return_exceptions=True)


async def test_quota_and_its_settings(cluster: World, running: Running) -> None:
    for manifest in [*documents("gpuquota.yaml"), *documents("gpu-admission.yaml")]:
        kind = {"ConfigMap": ConfigMap.RESOURCE, "Service": SERVICES, "Deployment": DEPLOYMENTS}[manifest["kind"]]
        await cluster.client.create(manifest, resource=kind)
    await running.until(lambda: running.leader.quotas("A"))
    quota = running.leader.quotas("A")
    assert quota is not None and quota.models == {"M40": 200, "P100": 300} and quota.pools == ("public",)
    assert running.leader.quotas("default") is None
    assert await cluster.client.list(Pod) == []
