"""Taking gpuplane off a cluster: every node is as it was before, in the API and on its disk, byte for byte."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.gpunode import GPUNode, StageState
from kubekit.api.core import DaemonSet, Node, Pod, RuntimeClass
from kubekit.kube import NotFound
from tests.support.until import until

USE = """
import time, pynvml
pynvml.nvmlInit()
print("uses", pynvml.nvmlDeviceGetCount(), flush=True)
time.sleep(3600)
"""


def holder(node: str) -> dict[str, Any]:
    """A pod that has the driver open."""
    container = {
        "name": "main",
        "image": "python:3.11",
        "command": [sys.executable, "-c", USE],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    spec = {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "holder"}, "spec": spec}


CLUSTERS_OWN = ("gpu-operator-", "gpuplane-", "node-feature-discovery-")


async def until_in_use(story) -> None:
    async def says() -> bool:
        return "uses" in await story.log("holder")

    await until(says)


async def assert_as_before(story):
    for name, bare in story.world.bare.items():
        after = story.world.files(name)
        assert {path: after.get(path) for path in bare.keys() ^ after.keys()} == {}, name
        assert {path: after[path] for path in bare if bare[path] != after[path]} == {}, name
    for node in await story.client.list(Node):
        assert story.world.labels_and_taints(node) == story.world.bare_nodes[node.metadata.name]
        assert names.SHARE_FREED_ANNOTATION not in node.metadata.annotations
    assert not await story.client.list(RuntimeClass)


async def test_deleting_the_policy_alone_gives_the_nodes_back_and_keeps_the_operator(story):
    await story.ready()
    freed = {"metadata": {"annotations": {names.SHARE_FREED_ANNOTATION: "as the extender writes it"}}}
    await story.client.patch(Node, "sim-1", freed)
    await story.client.delete(ClusterPolicy, "cluster-policy", propagation="Foreground")
    await story.until(ClusterPolicy, lambda found: not found)
    await story.until(DaemonSet, lambda found: not found, namespace="gpu-operator")
    await story.until(
        Pod,
        lambda found: found and all(pod.metadata.name.startswith(("gpu-operator-", "gpuplane-")) for pod in found),
        namespace="gpu-operator",
    )
    assert await story.client.list(GPUNode) == []
    await story.until(RuntimeClass, lambda found: not found)
    await assert_as_before(story)
    # The operator stays, and begins again with the next policy.
    story.world.install()
    await story.until(GPUNode, lambda found: len(found) == len(story.world.bare))


async def test_opting_out_gives_that_node_back_and_touches_no_other(story):
    await story.ready()
    before = await story.states(without="sim-1")
    await story.opt_out("sim-1")
    # The rest belongs to the cluster: the installation itself, and discovery, which labels every machine.
    await story.until(
        Pod,
        lambda found: all(pod.metadata.name.startswith(CLUSTERS_OWN) for pod in found),
        namespace="gpu-operator",
        fields="spec.nodeName=sim-1",
    )
    bare, after = story.world.bare["sim-1"], story.world.files("sim-1")
    assert {path: after.get(path) for path in bare if bare[path] != after.get(path)} == {}
    assert after.keys() - bare.keys() == set()
    node = await story.client.get(Node, "sim-1")
    labels, taints = story.world.bare_nodes["sim-1"]
    # Labels of discovery stay, as on any node; labels of the operands are deleted.
    ours = {name: value for name, value in node.metadata.labels.items() if name.startswith("nvidia.com/")}
    assert ours == {names.DEPLOY_OPERANDS_LABEL: "false"}
    assert story.world.labels_and_taints(node)[1] == taints and labels.items() <= node.metadata.labels.items()
    assert node.status.allocatable.get("nvidia.com/gpu", "0") == "0"
    assert await story.states(without="sim-1") == before
    await story.opt_in("sim-1")
    await story.ready()


async def test_uninstall_waits_for_who_uses_a_gpu_and_gives_everything_back(story):
    await story.ready()
    await story.client.create(holder("sim-3"), namespace="default")
    await story.phase("holder", "Running")
    await until_in_use(story)
    uninstall = asyncio.create_task(asyncio.to_thread(story.world.gpuplane, "uninstall", "-q", "--timeout", "60s"))
    node = await story.node("sim-3", lambda node: node.status.stages["driver"].reason == "ModuleInUse")
    assert node.status.stages["driver"].state is StageState.FAILED
    assert "end the processes that use the GPUs" in node.status.stages["driver"].cure
    await story.until(GPUNode, lambda found: {node.metadata.name for node in found} == {"sim-3"})
    await story.client.delete(Pod, "holder", "default", grace_seconds=0)
    assert await uninstall == ""
    await assert_as_before(story)
    for kind in (GPUNode, ClusterPolicy):
        with pytest.raises(NotFound):
            await story.client.list(kind)
    with pytest.raises(NotFound):
        await story.client.request("GET", "/api/v1/namespaces/gpu-operator")
    roles = (await story.client.request("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles")).decode()
    assert "gpuplane" not in roles
    # Once more: there is nothing left to take away, and that is no error.
    assert story.world.gpuplane("uninstall", "-q") == ""
    asked = story.world.run(sys.executable, "-m", "gpuplane", "status")
    assert asked.returncode == 1 and "gpuplane is not on this cluster" in asked.stderr
