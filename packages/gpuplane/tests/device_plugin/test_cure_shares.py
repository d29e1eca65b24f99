"""The cure of `explain` that makes a node offer shares, carried out with the real device plugin."""

from __future__ import annotations

from typing import Any

from gpuplane.api.gpunode import GPUNode
from gpuplane.api.requests import uses_gpus
from gpuplane.explain.answer import explain
from gpuplane.explain.reading import read
from gpuplane.sharing import of_pod
from kubekit.api.core import Pod
from kubekit.kube import SystemClock
from tests.support.extender_world import gpu_pod


async def test_a_pod_that_asks_a_share_runs_once_the_node_is_labelled(running: Any) -> None:
    cluster = await running({"node": "t4-ubuntu22"}, extender=True)
    await cluster.until(GPUNode, lambda nodes: [node for node in nodes if node.status.summary.stage == "ready"])
    # The pod that proves the node holds its GPU until it has ended.
    await cluster.until(Pod, lambda pods: not [pod for pod in pods if uses_gpus(pod) and not pod.status.ended])
    await cluster.client.create(gpu_pod("part", (40, 16)), resource=Pod.RESOURCE, namespace="default")
    found = explain(*await read(cluster.client, "default", "part"), SystemClock().wall())
    [cure] = [cure for cure in found.cures if "label" in cure.change]
    assert (cure.change, cure.place) == ("kubectl label node node nvidia-device-enable=enable", "node/0")
    key, _, value = cure.change.rpartition(" ")[2].partition("=")
    await cluster.label("node", {key: value})
    [pod] = await cluster.pods(lambda pods: [pod for pod in pods if pod.spec.node_name])
    assignment = of_pod(pod)
    assert assignment is not None
    assert [f"node/{index}" for _, index in assignment.held()] == [cure.place]
