"""Two pods with parts of one GPU on an embedded cluster, as its users ask for them and NVML sees them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from limits_examples import SPIN

import gpuplane
from gpuplane.api.core import Event, Node, Pod
from gpuplane.kube import Client, Informer
from gpuplane.limits import ESCAPED
from gpuplane.simulator.cluster import ClusterHandle, NodeSpec

NATIVE = Path(gpuplane.__file__).parent / "_native"
MACHINE = "p40-ubuntu22"
PATIENCE_SECONDS = 60.0

BUSY = f"""
import ctypes, os
from ctypes import byref, c_size_t, c_uint64, c_void_p
cuda = ctypes.CDLL(os.environ.get("LIBRARY", "libcuda.so.1"))
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{{name}}: {{code}}"
call("cuInit", 0)
call("cuCtxCreate_v2", byref(c_void_p()), 0, 0)
call("cuMemAlloc_v2", byref(c_uint64()), c_size_t(1 << 30))
module, function = c_void_p(), c_void_p()
call("cuModuleLoadData", byref(module), {SPIN!r}.encode())
call("cuModuleGetFunction", byref(function), module, b"spin")
length = c_uint64(2_000_000)
arguments = (c_void_p * 1)(ctypes.addressof(length))
while True:
    call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
"""


# By its file the driver's own library can be had past ours: limits are for tenants who cooperate.
REAL = "/usr/local/nvidia/lib64/libcuda.so.gpuplane-real"
UTILIZATION = """
import json, pynvml
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
print(json.dumps(sorted(used.smUtil for used in pynvml.nvmlDeviceGetProcessUtilization(device, 0))))
"""


def pod(name: str, core: int, memory: int, library: str = "libcuda.so.1") -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": "python:3.11", "command": [sys.executable, "-c", BUSY]}
    container["env"] = [{"name": "LIBRARY", "value": library}]
    container["resources"] = {"limits": {"tencent.com/vcuda-core": core, "tencent.com/vcuda-memory": memory}}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def until(client: Client, kind: Any, holds: Callable[[list[Any]], Any], namespace: str | None = None) -> Any:
    """What `holds(objects)` gives once that is true; looks after each change."""
    informer = Informer(client, kind, namespace)
    changed = asyncio.Event()
    informer.add_handler(lambda old, new: changed.set())
    informer.start()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await informer.synced()
            while not (found := holds(informer.items())):
                await changed.wait()
                changed.clear()
            return found
    finally:
        await informer.stop()


def about_pod(event: Event) -> bool:
    return event.reason == ESCAPED and event.involved_object.kind == "Pod"


async def output(*argv: str, **environment: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *argv, env=os.environ | environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return out.decode()


async def test_two_pods_get_30_and_60_percent_and_one_that_gets_round_is_told(
    native: Path, embedded_cluster: Callable[..., Awaitable[ClusterHandle]]
) -> None:
    handle = await embedded_cluster(nodes=(NodeSpec(name="shares", machine=MACHINE),))
    own = [sys.executable, "-m", "gpuplane"]
    await output(*own, "install", "-q", "--kubeconfig", str(handle.kubeconfig))
    async with Client.connect(handle.kubeconfig) as client:
        await until(client, Node, lambda nodes: nodes and "nvidia.com/gpu" in nodes[0].status.allocatable)
        await client.patch(Node, "shares", {"metadata": {"labels": {"nvidia-device-enable": "enable"}}})
        await until(
            client, Node, lambda nodes: int(nodes[0].status.allocatable.get("tencent.com/vcuda-core", 0)) == 100
        )
        for name, core in (("tune", 30), ("serve", 60)):
            await client.create(pod(name, core, 20), namespace="default")
        await until(client, Pod, lambda pods: [p.status.phase for p in pods] == ["Running"] * 2, "default")

        root = handle.directory / "nodes/shares/root"
        driver = {"LD_LIBRARY_PATH": str(NATIVE), "SIMGPU_DEV": str(root / "dev")}
        top = [*own, "share", "top", "--host-root", str(root), "--interval", "2", "-o", "json"]
        off: dict[str, float] = {}
        for _ in range(10):  # the machine is busy with a cluster
            [gpu] = json.loads(await output(*top))["gpus"]
            got = {row["name"]: (row["coreLimit"], row["corePercent"]) for row in gpu["shares"]}
            assert set(got) == {"default/tune:main", "default/serve:main"}
            used = json.loads(await output(sys.executable, "-c", UTILIZATION, **driver))
            off = {name: abs(percent - limit) for name, (limit, percent) in got.items()}
            off["by NVML"] = max(abs(a - b) for a, b in zip(used, (30, 60), strict=True))
            if max(off.values()) <= 4:
                break
        assert max(off.values()) <= 4, (got, used)
        assert gpu["outside"] == []
        memory = {row["name"]: (row["memoryLimitBytes"], row["memoryBytes"]) for row in gpu["shares"]}
        assert all(limit == 5 << 30 and 1 << 30 < held < 2 << 30 for limit, held in memory.values()), memory

        await client.create(pod("sly", 10, 8, REAL), namespace="default")
        [event] = await until(client, Event, lambda events: [e for e in events if about_pod(e)], "default")
        assert event.involved_object.name == "sly" and event.type == "Warning"
        assert "of default/sly:main got round the limits: 1" in event.message and "seen by NVML" in event.message
        [gpu] = json.loads(await output(*top))["gpus"]
        assert [process["name"] for process in gpu["outside"]] == ["default/sly:main"]
