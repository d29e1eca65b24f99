"""The device plugin as its users see it: manifests in, Nodes and Pods out, on an embedded cluster."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from gpuplane.api.core import Deployment, Pod
from gpuplane.api.gpunode import GPUNode
from gpuplane.host import Host

SHARES_OF_24_GIB = {"tencent.com/vcuda-core": 100, "tencent.com/vcuda-memory": 96}
PATIENCE_SECONDS = 30.0
LABELS = {"jina.ai/node-type": "gpu-shared", "karpenter.sh/provisioner-name": "gpu-shared"}


def phases(pods: list[Pod]) -> Counter[str]:
    return Counter(pod.status.phase for pod in pods)


async def test_ten_pods_share_a_gpu_by_the_label_of_their_node(running: Any, manifests: Path) -> None:
    cluster = await running({"shared": "t4-ubuntu22"}, "devicePlugin.config.name=plugin-configs")
    values = yaml.safe_load((manifests / "karpenter" / "device-plugin-values.yaml").read_text())
    configs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plugin-configs"}}
    await cluster.client.create({**configs, "data": values["config"]["map"]}, namespace="gpu-operator")
    await cluster.amounts("shared", {"nvidia.com/gpu": 1})

    await cluster.label("shared", {"nvidia.com/device-plugin.config": "shared_gpu", **LABELS})
    await cluster.amounts("shared", {"nvidia.com/gpu": 10})
    await cluster.create(manifests / "karpenter" / "gpu-shared.yaml")
    await cluster.client.patch(Deployment, "test-gpu-shared", {"spec": {"replicas": 11}}, namespace="default")
    await cluster.pods(lambda pods: phases(pods) == {"Running": 10, "Pending": 1})

    await cluster.label("shared", {"nvidia.com/device-plugin.config": None})
    await cluster.amounts("shared", {"nvidia.com/gpu": 1})
    assert phases(await cluster.client.list(Pod, "default")) == {"Running": 10, "Pending": 1}, "nobody is evicted"


async def test_shares_as_gpu_managers_users_ask_for_them(running: Any, manifests: Path) -> None:
    cluster = await running({"shares": "p40-ubuntu22"})
    await cluster.amounts("shares", {"nvidia.com/gpu": 1})
    await cluster.label("shares", {"nvidia-device-enable": "enable"})
    await cluster.amounts("shares", SHARES_OF_24_GIB)
    await cluster.create(manifests / "gpu-manager" / "vcuda-test.yaml")
    part, whole = reversed(list(yaml.safe_load_all((manifests / "gpu-manager" / "pods.yaml").read_text())))
    await cluster.client.create(part, namespace="default")
    await cluster.pods(lambda pods: phases(pods) == {"Running": 2})
    await cluster.client.create(whole, namespace="default")
    await cluster.pods(lambda pods: phases(pods) == {"Running": 2, "Pending": 1})


# What a program finds out about its GPU: by its environment, NVML and CUDA; and how much it may allocate.
LOOK = """
import ctypes, json, os, pynvml
seen = {"visible": os.environ.get("NVIDIA_VISIBLE_DEVICES"), "limits": os.environ.get("GPUPLANE_LIMITS")}
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
seen["count"] = pynvml.nvmlDeviceGetCount()
seen["nvml"] = pynvml.nvmlDeviceGetMemoryInfo(handle).total >> 20
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
device, context, pointer, total = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t()
cuda.cuDeviceGet(ctypes.byref(device), 0)
cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
seen["cuda"] = total.value >> 20
cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
allocated = 0
while cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(256 << 20)) == 0:
    allocated += 256
seen["allocated"] = allocated
print(json.dumps(seen))
"""


def look(name: str, **limits: str) -> dict[str, Any]:
    container = {"name": "main", "image": "python:3.11", "command": [sys.executable, "-c", LOOK]}
    container["resources"] = {"limits": {f"tencent.com/vcuda-{key}": value for key, value in limits.items()}}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def test_a_share_is_held_to_what_it_asked(running: Any) -> None:
    cluster = await running({"shares": "p40-ubuntu22"})
    await cluster.amounts("shares", {"nvidia.com/gpu": 1})
    await cluster.label("shares", {"nvidia-device-enable": "enable"})
    await cluster.amounts("shares", SHARES_OF_24_GIB)

    await cluster.client.create(look("part", core="30", memory="20"), namespace="default")
    seen = json.loads(await cluster.ended("part"))
    assert (seen["count"], seen["nvml"], seen["cuda"]) == (1, 5120, 5120)
    assert 5120 - 512 <= seen["allocated"] <= 5120, "contexts may count too"
    await cluster.client.create(look("whole", core="100"), namespace="default")
    seen = json.loads(await cluster.ended("whole"))
    assert (seen["limits"], seen["nvml"], seen["cuda"]) == (None, 24576, 24451)

    shares = cluster.root("shares") / "var/lib/gpuplane/limits/shares"
    [share] = shares.iterdir()
    await cluster.delete(Pod, "part")
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for _ in Host(shares).watch(share.name):
            if not share.exists():
                break


async def test_metrics_by_gpu_managers_names(running: Any, manifests: Path) -> None:
    cluster = await running({"shares": "p40-ubuntu22"})
    await cluster.amounts("shares", {"nvidia.com/gpu": 1})
    await cluster.label("shares", {"nvidia-device-enable": "enable"})
    await cluster.amounts("shares", SHARES_OF_24_GIB)
    part = list(yaml.safe_load_all((manifests / "gpu-manager" / "pods.yaml").read_text()))[1]
    await cluster.client.create(part, namespace="default")
    [pod] = await cluster.pods(lambda pods: [pod for pod in pods if pod.status.phase == "Running"])
    [plugin] = [
        pod
        for pod in await cluster.client.list(Pod, "gpu-operator")
        if pod.metadata.name.startswith("nvidia-device-plugin")
    ]

    async def get(path: str) -> str:
        with await asyncio.to_thread(urllib.request.urlopen, f"http://{plugin.status.pod_ip}:5678{path}") as answer:
            return answer.read().decode()

    metrics = await get("/metric")
    who = 'container_name="gpu",namespace="default",node="shares",pod_name="part-card"'
    assert f'container_request_gpu_utilization{{{who},req_of_gpu="total"}} 0.3\n' in metrics
    assert f'container_request_gpu_memory{{{who},req_of_gpu_memory="total"}} 5120\n' in metrics
    for gpu in ("gpu0", "total"):
        assert f'container_gpu_utilization{{container_name="gpu",gpu="{gpu}",' in metrics
        assert f'container_gpu_memory_total{{container_name="gpu",gpu_memory="{gpu}",' in metrics
    used = json.loads(await get("/usage"))["usage"][pod.metadata.uid]
    assert used["spec"] == {"gpu": {"gpu": 0.3, "mem": 5120}}
    assert [device["card_idx"] for device in used["stat"]["gpu"]["dev"]] == ["0"]
    assert "default/part-card:gpu" in json.loads(await get("/graph"))["graph"]
    assert json.loads(await get("/version"))["version"]


async def test_a_machine_that_has_shares_from_the_start_gets_ready(running: Any) -> None:
    cluster = await running({"shares": "p40-ubuntu22"}, labels={"nvidia-device-enable": "enable"})
    await cluster.until(GPUNode, lambda nodes: [node for node in nodes if node.status.summary.stage == "ready"])
    await cluster.amounts("shares", SHARES_OF_24_GIB)
