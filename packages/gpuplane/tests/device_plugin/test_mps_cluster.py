"""GPUs shared by MPS as users see them, on an embedded cluster: a configuration in, replicas and limits out."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from gpuplane.api.gpunode import GPUNode
from gpuplane.explain.answer import explain
from gpuplane.explain.reading import read
from gpuplane.host import Host
from kubekit.api.core import ConfigMap, Node, Pod
from kubekit.kube import SystemClock
from simgpu import layout

# Two programs run at once under MPS; each writes what it sees, and holds its memory until its context breaks.
CLIENT = """
import ctypes, json, os, time
from pathlib import Path
cuda = ctypes.CDLL("libcuda.so.1")
device, context, pointer, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
assert cuda.cuInit(0) == 0
cuda.cuDeviceGet(ctypes.byref(device), 0)
code = cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
cuda.cuDeviceGetAttribute(ctypes.byref(count), 16, device)
allocated = 0
while cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(256 << 20)) == 0:
    allocated += 256
seen = {"code": code, "multiprocessors": count.value, "allocated": allocated}
seen["pipe"] = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
Path("/seen/." + os.environ["HOSTNAME"]).write_text(json.dumps(seen))
Path("/seen/." + os.environ["HOSTNAME"]).rename("/seen/" + os.environ["HOSTNAME"])
while not cuda.cuCtxSynchronize():
    time.sleep(0.05)
print("gone", flush=True)
"""


def config(replicas: int) -> dict[str, str]:
    shared = {"resources": [{"name": "nvidia.com/gpu", "replicas": replicas, "rename": "nvidia.com/gpu.shared"}]}
    return {"mps": json.dumps({"version": "v1", "sharing": {"mps": shared}}), "plain": "version: v1"}


def client(name: str) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": "python:3.11", "command": [sys.executable, "-c", CLIENT]}
    container["resources"] = {"limits": {"nvidia.com/gpu.shared": "1"}}
    container["volumeMounts"] = [{"name": "seen", "mountPath": "/seen"}]
    volumes = [{"name": "seen", "hostPath": {"path": "/seen", "type": "DirectoryOrCreate"}}]
    container["env"] = [{"name": "HOSTNAME", "value": name}]
    spec = {"restartPolicy": "Never", "containers": [container], "volumes": volumes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def test_two_pods_under_mps(running: Any, mounts: bool) -> None:
    cluster = await running(
        {"gpu": "t4-ubuntu22"}, "devicePlugin.config.name=configs", "devicePlugin.config.default=mps"
    )
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "configs"}, "data": config(2)}
    await cluster.client.create(body, namespace="gpu-operator")
    await cluster.amounts("gpu", {"nvidia.com/gpu.shared": 2})

    await cluster.until(GPUNode, lambda nodes: [node for node in nodes if node.status.summary.stage == "ready"])
    [node] = await cluster.client.list(Node)
    labels = {name: node.metadata.labels[f"nvidia.com/{name}"] for name in ("mps.capable", "gpu.sharing-strategy")}
    assert labels == {"mps.capable": "true", "gpu.sharing-strategy": "mps"}
    assert compute_mode(cluster) == 3

    for name in ("one", "two"):
        await cluster.client.create(client(name), namespace="default")
    await cluster.pods(lambda pods: [pod.status.phase for pod in pods] == ["Running", "Running"])
    pipe = "/mps" if mounts else cluster.root("gpu") / "run/nvidia/mps"
    for name in ("one", "two"):
        async with asyncio.timeout(60):
            seen = json.loads(await Host(cluster.root("gpu")).wait_for(f"seen/{name}"))
        assert (seen["code"], seen["multiprocessors"], seen["pipe"]) == (0, 20, f"{pipe}/nvidia.com/gpu.shared/pipe")
        assert 7680 - 768 <= seen["allocated"] <= 7680, "half of 15 GiB, contexts count"

    found = explain(*await read(cluster.client, "default", "one"), SystemClock().wall())
    assert found.asks == "1 MPS replica"
    assert [(held.gpu, held.unit, held.memory_mib) for held in found.held] == [("gpu/0", "1 MPS replica", 7680)]

    await cluster.client.patch(ConfigMap, "configs", {"data": config(4)}, namespace="gpu-operator")
    await cluster.amounts("gpu", {"nvidia.com/gpu.shared": 4})
    assert "gone" in await cluster.ended("one"), "another daemon: what ran under the first has lost it"

    await cluster.label("gpu", {"nvidia.com/device-plugin.config": "plain"})
    await cluster.amounts("gpu", {"nvidia.com/gpu": 1})

    def no_daemon(pods: list[Pod]) -> bool:
        return not any("mps-control-daemon" in pod.metadata.name for pod in pods)

    await cluster.until(Pod, no_daemon, namespace="gpu-operator")
    assert compute_mode(cluster) == 0
    assert not (cluster.root("gpu") / "run/nvidia/mps/.ready").exists()


async def test_pods_under_mps_of_another_root(running: Any, mounts: bool) -> None:
    """Daemons, the plugin and pods meet below `devicePlugin.mps.root`, and nothing is left of the default."""
    if not mounts:
        pytest.skip("the directory is mounted into the driver's root, and this user cannot mount")
    cluster = await running(
        {"gpu": "t4-ubuntu22"},
        "devicePlugin.config.name=configs",
        "devicePlugin.config.default=mps",
        "devicePlugin.mps.root=/srv/mps",
    )
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "configs"}, "data": config(2)}
    await cluster.client.create(body, namespace="gpu-operator")
    await cluster.amounts("gpu", {"nvidia.com/gpu.shared": 2})
    await cluster.client.create(client("one"), namespace="default")
    root = cluster.root("gpu")
    async with asyncio.timeout(60):
        seen = json.loads(await Host(root).wait_for("seen/one"))
    assert (seen["code"], seen["multiprocessors"], seen["pipe"]) == (0, 20, "/mps/nvidia.com/gpu.shared/pipe")
    assert (root / "srv/mps/.ready").exists() and not (root / "run/nvidia/mps").exists()


def compute_mode(cluster: Any) -> int:
    with (cluster.root("gpu") / "var/lib/simgpu/state").open("rb") as file:
        file.seek(layout.StateLayout.gpus.offset + layout.GpuLayout.compute_mode.offset)
        return int.from_bytes(file.read(4), "little")
