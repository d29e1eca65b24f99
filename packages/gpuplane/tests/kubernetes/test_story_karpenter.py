"""The device plugin's values and the Deployments of node pools on real Kubernetes: shared GPUs, then whole ones.

Nodes are made by Karpenter elsewhere; here one machine gets the labels and taints of the one pool after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpulab.kubernetes import binaries
from gpulab.kubernetes.unavailable import Unavailable
from gpuplane import names
from kubekit.api.core import Namespace, Node
from kubekit.kube import Client
from tests.support.realkube.chart import CHART, helm
from tests.support.realkube.stories import GPUS, NAMESPACE, SHARED, WITH_MANIFESTS, StoryCluster
from tests.support.realkube.watching import until_objects

pytestmark = WITH_MANIFESTS
# As the Provisioners give them.
POOLS = {
    "gpu-shared": {names.PLUGIN_CONFIG_LABEL: "shared_gpu"},
    "gpu": {names.PLUGIN_CONFIG_LABEL: None},
}
COMMON = {"jina.ai/gpu-type": "nvidia"}
OWN = ("jina.ai/node-type", "karpenter.sh/provisioner-name")


async def join(stories: StoryCluster, client: Client, pool: str) -> None:
    labels = COMMON | dict.fromkeys(OWN, pool) | POOLS[pool]
    await client.patch(Node, stories.node.name, {"metadata": {"labels": labels}})


async def taint(stories: StoryCluster, client: Client, *keys: str) -> None:
    taints = [{"key": key, "effect": "NoSchedule"} for key in keys]
    await client.patch(Node, stories.node.name, {"spec": {"taints": taints or None}})


@pytest.fixture
async def release(stories: StoryCluster, client: Client) -> AsyncIterator[None]:
    """The chart with the values as printed, on a node of the shared pool."""
    try:
        binaries.build("helm")
    except Unavailable as problem:
        pytest.skip(f"no helm: {problem}")
    await stories.bare(client)
    await join(stories, client, "gpu-shared")
    where = ("-n", NAMESPACE, "--kubeconfig", str(stories.plane.kubeconfig))
    values = (SHARED / "karpenter/device-plugin-values.yaml").read_text()
    settings = ("--set", f"hostPaths.rootFS={stories.node.host_root},operator.cleanupCRD=true")
    # In threads: a client that cannot look at its connection for minutes does not see that the API server closed it.
    words = ("install", "gpuplane", str(CHART), "--create-namespace", *settings, *where)
    await asyncio.to_thread(helm, *words, values=values)
    yield
    stories.clean()
    await taint(stories, client)  # the hooks' Jobs have no other node
    words = ("uninstall", "gpuplane", "--wait", "--timeout", "4m", *where)
    await asyncio.to_thread(helm, *words, patience_s=300.0)
    await client.delete(Namespace, NAMESPACE)
    await until_objects(client, Namespace, lambda found: NAMESPACE not in {n.metadata.name for n in found})
    labels = dict.fromkeys((*COMMON, *OWN, names.PLUGIN_CONFIG_LABEL))
    await client.patch(Node, stories.node.name, {"metadata": {"labels": labels}})
    await stories.bare(client)


async def test_both_pools_run_their_deployments_with_the_replicas_of_their_configuration(
    stories: StoryCluster, client: Client, release: None
) -> None:
    await stories.offers(client, 10 * GPUS)
    await taint(stories, client, names.SHARED_TAINT)
    # New pods of operands stand the taint, too.
    plugin = ("-n", NAMESPACE, "-l", "app.kubernetes.io/component=device-plugin")
    stories.kubectl("delete", "pods", "--wait", *plugin)
    await stories.of_label(client, plugin[-1], namespace=NAMESPACE)
    await stories.offers(client, 10 * GPUS)
    stories.apply("karpenter/gpu-shared.yaml")
    assert await stories.first_log(client, "app=gpu-shared") == "Num GPUs Available: 1\n"
    assert "docker.io/tensorflow/tensorflow:latest-gpu" in stories.registry.pulled, "imagePullPolicy: Always"
    await taint(stories, client, names.GPU_RESOURCE)
    await join(stories, client, "gpu")
    await stories.offers(client, GPUS)
    stories.apply("karpenter/gpu.yaml")
    assert await stories.first_log(client, "app=gpu") == "Num GPUs Available: 1\n"
