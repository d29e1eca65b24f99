"""The device plugin as its users see it: manifests in, Nodes and Pods out, on an embedded cluster."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import urllib.request
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.host import Host
from gpuplane.limits import ShareStore
from gpuplane.scheduler.drift import DIFFERS
from gpuplane.sharing import Assignment, Part, of_pod, request_of, to_annotations
from kubekit.api.core import Deployment, Event, Pod

SHARES_OF_24_GIB = {"tencent.com/vcuda-core": 100, "tencent.com/vcuda-memory": 96}
PATIENCE_SECONDS = 60.0


def of_pool(name: str) -> dict[str, str]:
    """The labels of a Provisioner's nodes, by which the Deployments of karpenter/ select them."""
    return {"jina.ai/node-type": name, "karpenter.sh/provisioner-name": name}


def phases(pods: list[Pod]) -> Counter[str]:
    return Counter(pod.status.phase for pod in pods)


async def test_ten_pods_share_a_gpu_by_the_label_of_their_node(running: Any, manifests: Path) -> None:
    machines = {"shared": "t4-ubuntu22", "whole": "t4-ubuntu22"}
    cluster = await running(machines, "devicePlugin.config.name=plugin-configs", extender=True)
    values = yaml.safe_load((manifests / "karpenter" / "device-plugin-values.yaml").read_text())
    configs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plugin-configs"}}
    await cluster.client.create({**configs, "data": values["config"]["map"]}, namespace="gpu-operator")
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
    container: dict[str, Any] = {"name": "main", "image": "python:3.11", "command": [sys.executable, "-c", LOOK]}
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

    # What has ended takes its share along.
    shares = cluster.root("shares") / "var/lib/gpuplane/limits/shares"
    async with asyncio.timeout(PATIENCE_SECONDS):
        for share in list(shares.iterdir()):
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
            text: str = answer.read().decode()
            return text

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
    cluster = await running({"shares": "l4-ubuntu24"}, labels={"nvidia-device-enable": "enable"})
    await cluster.until(GPUNode, lambda nodes: [node for node in nodes if node.status.summary.stage == "ready"])
    await cluster.amounts("shares", {"tencent.com/vcuda-core": 200})


SLEEP = ["sleep", "3600"]


def share(name: str, *asks: tuple[int, int], scheduler: str = "nobody") -> dict[str, Any]:
    """A pod that sleeps, with a container for each (core, memory units); nobody places it but the test."""
    containers = [
        {
            "name": f"c{number}",
            "image": "busybox",
            "command": SLEEP,
            "resources": {"limits": {"tencent.com/vcuda-core": core, "tencent.com/vcuda-memory": memory}},
        }
        for number, (core, memory) in enumerate(asks)
    ]
    # Not 0: the API server would delete the pod at once, and its part be bound again before its containers have ended.
    spec = {"schedulerName": scheduler, "terminationGracePeriodSeconds": 1, "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def test_the_assignment_of_the_binding_is_obeyed_whatever_restarts(running: Any) -> None:
    """Two GPUs, and pods that ask alike: only their annotations tell them apart."""
    cluster = await running({"shares": "l4-ubuntu24"}, labels={"nvidia-device-enable": "enable"})
    await cluster.amounts("shares", {"tencent.com/vcuda-core": 200})
    [node] = await cluster.client.list(GPUNode)
    gpus = node.status.gpus
    store = ShareStore(cluster.root("shares") / "var/lib/gpuplane/limits")

    async def place(name: str, *on: int) -> None:
        made = await cluster.client.create(share(name, *((20, 8) for _ in on)), namespace="default")
        pod = msgspec.convert(made, Pod)
        parts: dict[str, tuple[Part, ...]] = {
            f"c{n}": (Part(gpus[index].uuid, index, 20, 2048),) for n, index in enumerate(on)
        }
        said = to_annotations(Assignment(parts), request_of(pod), "shares", 1)
        await cluster.bind(name, "shares", said)

    async def held(name: str, *on: int) -> None:
        assert await ended_up(name) == "Running"
        found = {share.owner.container: share.limits.gpus for share in store.all() if share.owner.pod == name}
        assert {name: gpu.uuid for name, [gpu] in found.items()} == {
            f"c{n}": gpus[index].uuid for n, index in enumerate(on)
        }
        assert all(gpu.core == 20 and gpu.memory_bytes == 2 << 30 for [gpu] in found.values())

    async def ended_up(name: str) -> str:
        def there(pods: list[Pod]) -> str:
            return next((p.status.phase for p in pods if p.metadata.name == name and p.status.phase != "Pending"), "")

        phase: str = await cluster.pods(there)
        return phase

    async def again(name: str, on: int) -> None:
        """As a ReplicaSet does: a kubelet without its plugin turns pods away, and another one is made."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            for attempt in count():
                await place(f"{name}{attempt}", on)
                if await ended_up(f"{name}{attempt}") == "Running":
                    await held(f"{name}{attempt}", on)
                    return
                await cluster.delete(Pod, f"{name}{attempt}")

    await asyncio.gather(place("a", 1), place("b", 0, 1), place("c", 0), place("d", 1))
    for name, on in (("a", (1,)), ("b", (0, 1)), ("c", (0,)), ("d", (1,))):
        await held(name, *on)

    cluster.kill_containers("shares", "nvidia-device-plugin")
    await again("e", 0)
    os.kill(cluster.process("kubelet-shares"), signal.SIGKILL)
    await again("f", 1)
    for socket in (cluster.root("shares") / "var/lib/kubelet/device-plugins").glob("tencent*"):
        socket.unlink()
    await again("g", 0)
    await held("a", 1)

    await place("h", 0)
    await held("h", 0)
    await place("i", 0)
    assert await ended_up("i") == "Failed"
    [pod] = [pod for pod in await cluster.client.list(Pod, "default") if pod.metadata.name == "i"]
    assert f"20 of {gpus[0].uuid} are assigned, 0 are left" in pod.status.message


# As `nvidia-smi mig` does: GPU 0 into 3g and two 1g, GPU 1 into MIG mode without anything in it.
CUT = """
import sys
from pathlib import Path
import pynvml
from gpuplane.hardware import open_gpus
gpus = open_gpus(Path(sys.argv[1]))
for index, profiles in ((0, ((9, 2), (19, 0), (19, 0))), (1, ())):
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    pynvml.nvmlDeviceSetMigMode(handle, 1)
    for gpu_instance, compute_instance in profiles:
        made = pynvml.nvmlDeviceCreateGpuInstance(handle, gpu_instance)
        pynvml.nvmlGpuInstanceCreateComputeInstance(made, compute_instance)
"""


async def test_gpus_that_are_cut_are_offered_by_their_profiles(running: Any) -> None:
    shared = {"name": "mig-1g.5gb", "replicas": 2}
    config = {"version": "v1", "sharing": {"timeSlicing": {"resources": [shared]}}}
    settings = ("mig.strategy=mixed", "devicePlugin.config.name=configs", "devicePlugin.config.default=one")
    cluster = await running({"a100": "a100-ubuntu22"}, *settings)
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "configs"},
        "data": {"one": json.dumps(config)},
    }
    await cluster.client.create(body, namespace="gpu-operator")
    await cluster.amounts("a100", {"nvidia.com/gpu": 8})
    driver = cluster.root("a100") / names.DRIVER_ROOT
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CUT, str(driver))
    assert await process.wait() == 0
    cluster.kill_containers("a100", "nvidia-device-plugin")
    await cluster.amounts("a100", {"nvidia.com/gpu": 6, "nvidia.com/mig-3g.20gb": 1, "nvidia.com/mig-1g.5gb": 4})
    sockets = cluster.root("a100") / "var/lib/kubelet/device-plugins"
    assert {path.name for path in sockets.glob("nvidia*")} == {
        "nvidia-gpu.sock",
        "nvidia-mig-3g.20gb.sock",
        "nvidia-mig-1g.5gb.sock",
    }


async def test_whole_gpus_and_shares_side_by_side_are_the_same_silicon(running: Any) -> None:
    both = "devicePlugin.env=" + json.dumps([{"name": "GPUPLANE_DIALECTS", "value": "nvidia,tencent"}])
    cluster = await running({"both": "l4-ubuntu24"}, both, labels={"nvidia-device-enable": "enable"})
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
    """The extender is a part of it: assignments reach containers, and what does not fit waits instead of failing."""
    both = "devicePlugin.env=" + json.dumps([{"name": "GPUPLANE_DIALECTS", "value": "nvidia,tencent"}])
    cluster = await running({"both": "l4-ubuntu24"}, both, labels={"nvidia-device-enable": "enable"}, extender=True)
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
    # GPUNode says the same of what the kubelet has given, so nobody is told of a difference.
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
