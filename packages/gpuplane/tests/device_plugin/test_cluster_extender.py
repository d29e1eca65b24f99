"""Whole GPUs, replicas and shares where gpuplane places them by its extender, on an embedded cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from gpuplane.api.gpunode import GPUNode
from gpuplane.api.requests import uses_gpus
from gpuplane.explain.answer import explain
from gpuplane.explain.reading import read
from gpuplane.limits import ShareStore
from gpuplane.scheduler.drift import DIFFERS
from gpuplane.sharing import of_pod
from kubekit.api.core import ConfigMap, Deployment, Event, Pod
from kubekit.kube import SystemClock
from packages.gpuplane.tests.device_plugin.cluster_pods import phases, share
from tests.support.extender_world import gpu_pod

T4S = {"shared": "t4-ubuntu22", "whole": "t4-ubuntu22"}
L4 = {"both": "l4-ubuntu24"}
BOTH = "devicePlugin.env=" + json.dumps([{"name": "GPUPLANE_DIALECTS", "value": "nvidia,tencent"}])
ENABLED = {"both": {"nvidia-device-enable": "enable"}}


async def on_t4(running: Any) -> Any:
    return await running(T4S, "devicePlugin.config.name=configs", configs={"default": "version: v1"}, extender=True)


def of_pool(name: str) -> dict[str, str]:
    """The labels of a Provisioner's nodes, by which the Deployments of karpenter/ select them."""
    return {"jina.ai/node-type": name, "karpenter.sh/provisioner-name": name}


async def test_ten_pods_share_a_gpu_by_the_label_of_their_node(running: Any, manifests: Path) -> None:
    values = yaml.safe_load((manifests / "karpenter" / "device-plugin-values.yaml").read_text())
    cluster = await on_t4(running)
    await cluster.client.patch(ConfigMap, "configs", {"data": values["config"]["map"]}, namespace="gpu-operator")
    await cluster.amounts("shared", {"nvidia.com/gpu": 1})
    # Not before: the pod that proves the node holds a GPU, or one of the ten, as long as it runs.
    await cluster.until(GPUNode, lambda nodes: sum(node.status.summary.stage == "ready" for node in nodes) == 2)

    await cluster.amounts("whole", {"nvidia.com/gpu": 1})
    await cluster.label("whole", of_pool("gpu"))
    await cluster.create(manifests / "karpenter" / "gpu.yaml")
    await cluster.pods(lambda pods: phases(pods) == {"Running": 1})
    await cluster.client.delete(Deployment, "test-gpu", "default")
    await cluster.pods(lambda pods: not pods)

    await cluster.label("shared", {"nvidia.com/device-plugin.config": "shared_gpu", **of_pool("gpu-shared")})
    await cluster.amounts("shared", {"nvidia.com/gpu": 10})
    await cluster.create(manifests / "karpenter" / "gpu-shared.yaml")
    await cluster.client.patch(Deployment, "test-gpu-shared", {"spec": {"replicas": 11}}, namespace="default")
    await cluster.pods(lambda pods: phases(pods) == {"Running": 10, "Pending": 1})
    [waiting] = await cluster.pods(lambda pods: [pod for pod in pods if _waits(pod)])
    assert ["Insufficient nvidia.com/gpu" in (one.message or "") for one in waiting.status.conditions] == [True]
    assert not any(of_pod(pod) for pod in await cluster.client.list(Pod, "default")), "the kubelet chooses replicas"

    await cluster.label("shared", {"nvidia.com/device-plugin.config": None})
    await cluster.amounts("shared", {"nvidia.com/gpu": 1})
    assert phases(await cluster.client.list(Pod, "default")) == {"Running": 10, "Pending": 1}, "nobody is evicted"


async def test_a_pod_that_asks_a_share_runs_once_the_node_is_labelled(running: Any) -> None:
    cluster = await on_t4(running)
    await cluster.until(GPUNode, lambda nodes: sum(node.status.summary.stage == "ready" for node in nodes) == 2)
    # The pods that prove the nodes hold their GPUs until they have ended.
    await cluster.until(Pod, lambda pods: not [pod for pod in pods if uses_gpus(pod) and not pod.status.ended])
    await cluster.client.create(gpu_pod("part", (40, 16)), resource=Pod.RESOURCE, namespace="default")
    found = explain(*await read(cluster.client, "default", "part"), SystemClock().wall())
    [cure] = [cure for cure in found.cures if "label" in cure.change]
    node = cure.place.removesuffix("/0")
    assert node in T4S and cure.change == f"kubectl label node {node} nvidia-device-enable=enable"
    key, _, value = cure.change.rpartition(" ")[2].partition("=")
    await cluster.label(node, {key: value})
    [pod] = await cluster.pods(lambda pods: [pod for pod in pods if pod.spec.node_name])
    assignment = of_pod(pod)
    assert assignment is not None
    assert [f"{node}/{index}" for _, index in assignment.held()] == [cure.place]


async def test_whole_gpus_and_shares_side_by_side_are_the_same_silicon(running: Any) -> None:
    cluster = await running(L4, BOTH, labels=ENABLED)
    await cluster.until(GPUNode, lambda nodes: [node for node in nodes if node.status.summary.stage == "ready"])
    await cluster.amounts("both", {"nvidia.com/gpu": 2, "tencent.com/vcuda-core": 200})

    def whole(name: str) -> dict[str, Any]:
        pod = share(name, (0, 0), scheduler="default-scheduler")
        pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 1}}
        return pod

    async def phase(pod: dict[str, Any]) -> str:
        name = pod["metadata"]["name"]
        await cluster.client.create(pod, namespace="default")
        found: str = await cluster.pods(
            lambda pods: next(
                (p.status.phase for p in pods if p.metadata.name == name and p.status.phase != "Pending"), ""
            )
        )
        return found

    part = share("part", (20, 8), scheduler="default-scheduler")
    assert await phase(part) == "Running"
    assert await phase(whole("one")) == "Running"
    assert await phase(whole("two")) == "Failed", "its GPU is held in part, which no scheduler can know by itself"
    [refused] = [pod for pod in await cluster.client.list(Pod, "default") if pod.metadata.name == "two"]
    assert "1 whole GPU asked, 0 wholly free" in refused.status.message
    more = share("more", (30, 8), scheduler="default-scheduler")
    assert await phase(more) == "Running"
    store = ShareStore(cluster.root("both") / "var/lib/gpuplane/limits")
    assert len({gpu.uuid for found in store.all() for gpu in found.limits.gpus}) == 1


async def test_a_plain_install_places_shares_gpu_by_gpu_and_no_pod_is_turned_away(running: Any) -> None:
    """The extender is a part of it: assignments reach containers, and what does not fit waits instead of failing.

    The cluster of the test before gets the parts that it lacks, by a second install.
    """
    cluster = await running(L4, BOTH, labels=ENABLED, extender=True)
    await cluster.until(GPUNode, lambda nodes: [node for node in nodes if node.status.summary.stage == "ready"])
    await cluster.amounts("both", {"nvidia.com/gpu": 2, "tencent.com/vcuda-core": 200})
    for name, core in (("a", 60), ("b", 60), ("c", 40), ("d", 30)):
        await cluster.client.create(share(name, (core, 8), scheduler="default-scheduler"), namespace="default")
    await cluster.pods(lambda pods: phases(pods) == {"Running": 4})
    store = ShareStore(cluster.root("both") / "var/lib/gpuplane/limits")
    held = {found.owner.pod: found.limits.gpus[0] for found in store.all()}
    for pod in await cluster.client.list(Pod, "default"):
        assignment = of_pod(pod)
        assert assignment is not None
        [part] = assignment.containers["c0"]
        limit = held[pod.metadata.name]
        assert (limit.uuid, limit.core, limit.memory_bytes) == (part.uuid, part.core, 2 << 30)
    # GPUNode has the same allocation as the kubelet, so no difference is reported.
    said: dict[str, dict[str, int]] = {}
    for pod in await cluster.client.list(Pod, "default"):
        limit = held[pod.metadata.name]
        said.setdefault(limit.uuid, {})[pod.metadata.uid] = limit.core
    await cluster.until(GPUNode, lambda nodes: [node for node in nodes if node.status.held == said])
    assert DIFFERS not in {event.reason for event in await cluster.client.list(Event)}

    for name, resource, amount in (("whole", "nvidia.com/gpu", 1), ("part", "tencent.com/vcuda-core", 20)):
        waiting = share(name, (0, 0), scheduler="default-scheduler")
        waiting["spec"]["containers"][0]["resources"] = {"limits": {resource: amount}}
        await cluster.client.create(waiting, namespace="default")
    await cluster.pods(lambda pods: sum(_waits(pod) for pod in pods) == 2)
    leaving = {"a", "c"} if held["a"].uuid == held["c"].uuid else {"a", "d"}
    for name in leaving:
        await cluster.delete(Pod, name)
    # NB: until a deleted pod is gone it is Running at first, and Failed in the end.
    await cluster.pods(lambda pods: not leaving & {pod.metadata.name for pod in pods} and phases(pods)["Running"] >= 3)
    pods = await cluster.client.list(Pod, "default")
    assert [f"{pod.metadata.name}: {pod.status.message}" for pod in pods if pod.status.phase == "Failed"] == []


def _waits(pod: Pod) -> bool:
    return any(condition.reason == "Unschedulable" for condition in pod.status.conditions)
