"""The device plugin as its users see it, without the extender: manifests in, Nodes and Pods out."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import urllib.request
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.host import Host
from gpuplane.limits import ShareStore
from gpuplane.sharing import Assignment, Part, request_of, to_annotations
from kubekit.api.core import Pod
from packages.gpuplane.tests.device_plugin.cluster_pods import phases, share

SHARES_OF_24_GIB = {"tencent.com/vcuda-core": 100, "tencent.com/vcuda-memory": 96}
PATIENCE_SECONDS = 60.0
MACHINES = {"p40": "p40-ubuntu22", "l4": "l4-ubuntu24", "a100": "a100-ubuntu22"}
SETTINGS = ("mig.strategy=mixed", "devicePlugin.config.name=configs")
SHARES = {"nvidia-device-enable": "enable"}
LABELS = {"p40": SHARES, "l4": SHARES, "a100": {"nvidia.com/device-plugin.config": "replicas"}}
REPLICAS = {"version": "v1", "sharing": {"timeSlicing": {"resources": [{"name": "mig-1g.5gb", "replicas": 2}]}}}
CONFIGS = {"default": "version: v1", "replicas": json.dumps(REPLICAS)}


async def cluster_for(node: str, running: Any) -> Any:
    """The cluster of all tests, ready, where the scheduler sends pods to `node` alone.

    Two nodes have shares from their start, the third is cut.
    """
    cluster = await running(MACHINES, *SETTINGS, labels=LABELS, configs=CONFIGS)
    await cluster.until(
        GPUNode, lambda nodes: sum(node.status.summary.stage == "ready" for node in nodes) == len(MACHINES)
    )
    await cluster.cordon(*(name for name in MACHINES if name != node))
    return cluster


async def test_a_machine_that_has_shares_from_the_start_gets_ready(running: Any) -> None:
    cluster = await cluster_for("l4", running)
    await cluster.amounts("l4", {"tencent.com/vcuda-core": 200})


async def test_shares_as_gpu_managers_users_ask_for_them(running: Any, manifests: Path) -> None:
    cluster = await cluster_for("p40", running)
    await cluster.amounts("p40", SHARES_OF_24_GIB)
    await cluster.create(manifests / "gpu-manager" / "vcuda-test.yaml")
    part, whole = reversed(list(yaml.safe_load_all((manifests / "gpu-manager" / "pods.yaml").read_text())))
    await cluster.client.create(part, namespace="default")
    await cluster.pods(lambda pods: phases(pods) == {"Running": 2})
    await cluster.client.create(whole, namespace="default")
    await cluster.pods(lambda pods: phases(pods) == {"Running": 2, "Pending": 1})


# A program's view of its GPU: by its environment, NVML and CUDA; and the memory that it may allocate.
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
    cluster = await cluster_for("p40", running)
    await cluster.amounts("p40", SHARES_OF_24_GIB)

    await cluster.client.create(look("part", core="30", memory="20"), namespace="default")
    seen = json.loads(await cluster.ended("part"))
    assert (seen["count"], seen["nvml"], seen["cuda"]) == (1, 5120, 5120)
    assert 5120 - 512 <= seen["allocated"] <= 5120, "contexts may count too"
    await cluster.client.create(look("whole", core="100"), namespace="default")
    seen = json.loads(await cluster.ended("whole"))
    assert (seen["limits"], seen["nvml"], seen["cuda"]) == (None, 24576, 24451)

    # The share of a container that has ended is removed.
    shares = cluster.root("p40") / "var/lib/gpuplane/limits/shares"
    async with asyncio.timeout(PATIENCE_SECONDS):
        for share in list(shares.iterdir()):
            async for _ in Host(shares).watch(share.name):
                if not share.exists():
                    break


async def test_metrics_by_gpu_managers_names(running: Any, manifests: Path) -> None:
    cluster = await cluster_for("p40", running)
    await cluster.amounts("p40", SHARES_OF_24_GIB)
    part = list(yaml.safe_load_all((manifests / "gpu-manager" / "pods.yaml").read_text()))[1]
    await cluster.client.create(part, namespace="default")
    [pod] = await cluster.pods(lambda pods: [pod for pod in pods if pod.status.phase == "Running"])
    [plugin] = [
        pod
        for pod in await cluster.client.list(Pod, "gpu-operator")
        if pod.metadata.name.startswith("nvidia-device-plugin") and pod.spec.node_name == "p40"
    ]

    async def get(path: str) -> str:
        with await asyncio.to_thread(urllib.request.urlopen, f"http://{plugin.status.pod_ip}:5678{path}") as answer:
            text: str = answer.read().decode()
            return text

    metrics = await get("/metric")
    who = 'container_name="gpu",namespace="default",node="p40",pod_name="part-card"'
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


async def test_the_assignment_of_the_binding_is_obeyed_whatever_restarts(running: Any) -> None:
    """Two GPUs, and pods that ask alike: only their annotations tell them apart."""
    cluster = await cluster_for("l4", running)
    await cluster.amounts("l4", {"tencent.com/vcuda-core": 200})
    gpus = (await cluster.client.get(GPUNode, "l4")).status.gpus
    store = ShareStore(cluster.root("l4") / "var/lib/gpuplane/limits")

    async def place(name: str, *on: int) -> None:
        made = await cluster.client.create(share(name, *((20, 8) for _ in on)), namespace="default")
        pod = msgspec.convert(made, Pod)
        parts: dict[str, tuple[Part, ...]] = {
            f"c{n}": (Part(gpus[index].uuid, index, 20, 2048),) for n, index in enumerate(on)
        }
        said = to_annotations(Assignment(parts), request_of(pod), "l4", 1)
        await cluster.bind(name, "l4", said)

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

    cluster.kill_containers("l4", "nvidia-device-plugin")
    await again("e", 0)
    os.kill(cluster.process("kubelet-l4"), signal.SIGKILL)
    await again("f", 1)
    for socket in (cluster.root("l4") / "var/lib/kubelet/device-plugins").glob("tencent*"):
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
    cluster = await cluster_for("a100", running)
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
