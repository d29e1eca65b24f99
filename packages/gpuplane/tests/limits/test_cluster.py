"""Two pods with parts of one GPU on an embedded cluster, as its users ask for them and NVML sees them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import yaml
from kubernetes.stream import stream

from gpuplane.limits import ESCAPED
from kubekit.api.core import Event, Node, Pod
from kubekit.kube import Client
from simgpu import NATIVE
from tests.support.until import until_objects
from tinykube.cluster import ClusterHandle, MachineSpec
from tinykube.kubelet.containers import Isolation, find_mode

MACHINE = "p40-ubuntu22"
MANIFESTS = Path(__file__).parents[5] / "shared" / "manifests"
PATIENCE_SECONDS = 60.0

BUSY = """
import ctypes, os
from ctypes import byref, c_size_t, c_uint64, c_void_p
cuda = ctypes.CDLL(os.environ.get("LIBRARY", "libcuda.so.1"))
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name}: {code}"
call("cuInit", 0)
call("cuCtxCreate_v2", byref(c_void_p()), 0, 0)
call("cuMemAlloc_v2", byref(c_uint64()), c_size_t(1 << 30))
module, function = c_void_p(), c_void_p()
ptx = '.version 7.0 .target sm_35 .address_size 64 .visible .entry k() { .pragma "simgpu.time_ns 2000000"; ret; }'
call("cuModuleLoadData", byref(module), ptx.encode())
call("cuModuleGetFunction", byref(function), module, b"k")
while True:
    call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
"""
# A program's view of its GPU by NVML and by CUDA, and the size at which it is refused; in MiB.
LOOK = """
import ctypes, json, pynvml
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
pynvml.nvmlInit()
nvml = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total >> 20
cuda, device, total, held = ctypes.CDLL("libcuda.so.1"), c_int(), c_size_t(), 0
assert cuda.cuInit(0) == cuda.cuDeviceGet(byref(device), 0) == cuda.cuDeviceTotalMem_v2(byref(total), device) == 0
assert cuda.cuCtxCreate_v2(byref(c_void_p()), 0, 0) == 0
while (code := cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(64 << 20))) == 0:
    held += 64
print(json.dumps([pynvml.nvmlDeviceGetCount(), nvml, total.value >> 20, held, code]))
"""


# By its file the driver's own library can be had past ours: limits are for tenants who cooperate.
REAL = "/usr/local/nvidia/lib64/libcuda.so.gpuplane-real"
UTILIZATION = """
import json, pynvml
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
print(json.dumps(sorted(used.smUtil for used in pynvml.nvmlDeviceGetProcessUtilization(device, 0))))
"""
# nvidia-smi as a person or a script in the pod calls it.
SMI = """
import re, subprocess
print(subprocess.check_output(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader"], text=True), end="")
print(bool(re.search("/ +5120MiB [|]", subprocess.check_output(["nvidia-smi"], text=True))))
"""


def pod(name: str, core: int, memory: int, library: str = "libcuda.so.1") -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": "python:3.11", "command": [sys.executable, "-c", BUSY]}
    container["env"] = [{"name": "LIBRARY", "value": library}]
    container["resources"] = {"limits": {"tencent.com/vcuda-core": core, "tencent.com/vcuda-memory": memory}}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def gpu_managers() -> list[dict[str, Any]]:
    """Pods as gpu-manager's users have them: a whole GPU, and 30% with 5 GiB; both sleep."""
    path = MANIFESTS / "gpu-manager" / "pods.yaml"
    if not path.exists():
        pytest.skip("no shared manifests beside this checkout")
    return list(yaml.safe_load_all(path.read_text()))


@contextmanager
def inside(kubeconfig: Path, pod: str, program: str) -> Iterator[Any]:
    """As `kubectl exec` does: runs a program in a container of the pod, as long as the connection is open."""
    api = kubernetes.config.new_client_from_config(str(kubeconfig))
    core = kubernetes.client.CoreV1Api(api)
    command = [sys.executable, "-c", program]
    opened = stream(
        core.connect_get_namespaced_pod_exec, pod, "default", command=command, stdout=True, stderr=True,
        stdin=False, tty=False, _preload_content=False,
    )  # fmt: skip
    try:
        yield opened
    finally:
        opened.close()
        opened.sock.shutdown()
        api.close()


def printed(kubeconfig: Path, pod: str, program: str) -> str:
    with inside(kubeconfig, pod, program) as opened:
        opened.run_forever(timeout=PATIENCE_SECONDS)
        text: str = opened.read_all()
    return text


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
    whole, part = gpu_managers()
    handle = await embedded_cluster(nodes=(MachineSpec(name="shares", machine=MACHINE),))
    own = [sys.executable, "-m", "gpuplane"]
    await output(*own, "install", "-q", "--no-scheduler", "--admission", "none", "--kubeconfig", str(handle.kubeconfig))
    async with Client.connect(handle.kubeconfig) as client:
        await until_objects(client, Node, lambda nodes: nodes and "nvidia.com/gpu" in nodes[0].status.allocatable)
        await client.patch(Node, "shares", {"metadata": {"labels": {"nvidia-device-enable": "enable"}}})
        shares = {"tencent.com/vcuda-core": 100, "tencent.com/vcuda-memory": 96}
        await until_objects(
            client, Node, lambda nodes: all(int(nodes[0].status.allocatable.get(k, 0)) == v for k, v in shares.items())
        )
        await client.create(part, namespace="default")
        await client.create(pod("serve", 60, 20), namespace="default")
        await until_objects(
            client, Pod, lambda pods: [p.status.phase for p in pods] == ["Running"] * 2, namespace="default"
        )
        await client.create(whole, namespace="default")

        seen = await asyncio.to_thread(printed, handle.kubeconfig, "part-card", LOOK)
        count, nvml, cuda, held, code = json.loads(seen)
        assert (count, nvml, cuda, code) == (1, 5120, 5120, 2)
        assert 5120 - 512 <= held <= 5120, "the context counts too"
        shown = await asyncio.to_thread(printed, handle.kubeconfig, "part-card", SMI)
        assert shown.split("\n")[:2] == ["5120 MiB", "True"], "nvidia-smi shows the share's memory"
        root = handle.directory / "nodes/shares/root"
        driver = {"LD_LIBRARY_PATH": str(NATIVE), "SIMGPU_DEV": str(root / "dev")}
        top = [*own, "share", "top", "--host-root", str(root), "--interval", "2", "-o", "json"]
        with inside(handle.kubeconfig, "part-card", BUSY):
            off: dict[str, float] = {}
            for _ in range(10):  # the machine is busy with a cluster
                [gpu] = json.loads(await output(*top))["gpus"]
                got = {row["name"]: (row["coreLimit"], row["corePercent"]) for row in gpu["shares"]}
                assert set(got) == {"default/part-card:gpu", "default/serve:main"}
                used = json.loads(await output(sys.executable, "-c", UTILIZATION, **driver))
                off = {name: abs(percent - limit) for name, (limit, percent) in got.items()}
                off["by NVML"] = (
                    max(abs(a - b) for a, b in zip(used, (30, 60), strict=True)) if len(used) == 2 else 100.0
                )
                if max(off.values()) <= 4:
                    break
            assert max(off.values()) <= 4, (got, used)
            assert gpu["outside"] == []
            memory = {row["name"]: (row["memoryLimitBytes"], row["memoryBytes"]) for row in gpu["shares"]}
            assert all(limit == 5 << 30 and 1 << 30 < held < 2 << 30 for limit, held in memory.values()), memory
        pods = {p.metadata.name: p.status.phase for p in await client.list(Pod, "default")}
        assert pods == {"part-card": "Running", "serve": "Running", "one-card": "Pending"}, "no GPU is free as a whole"

        await client.create(pod("sly", 10, 8, REAL), namespace="default")
        # Where each container has a user namespace of its own, the device plugin may not look into other containers:
        # it finds the process by NVML, without its pod, and an event names host PID as missing.
        apart = find_mode().isolation in (Isolation.USERS, Isolation.USER)
        kind, name, whose = (
            ("Node", "shares", "is outside every limit") if apart else
            ("Pod", "sly", "of default/sly:main got round the limits")
        )  # fmt: skip
        [event] = await until_objects(
            client,
            Event,
            lambda events: [e for e in events if e.reason == ESCAPED and e.involved_object.kind == kind],
            namespace="default",
        )
        assert event.involved_object.name == name and event.type == "Warning"
        assert f"{whose}: 1" in event.message and "seen by NVML" in event.message
        less = [e for e in await client.list(Event) if e.reason == "LessIsolated" and "host PID" in e.message]
        assert any("device-plugin" in e.involved_object.name for e in less) == apart
        [gpu] = json.loads(await output(*top))["gpus"]
        assert [process["name"] for process in gpu["outside"]] == ["default/sly:main"]
