"""GPUs by NRI on a real kubelet and containerd 2: shares with their own limits, and no configuration of containerd."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from realkube.node import KubernetesNode
from realkube.watching import gpu_node_is_ready, log, node_is_ready, phase, until

from gpuplane import names
from gpuplane.api.core import Event, Node, Pod
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.protocol import nri_pb2 as pb
from gpuplane.device_plugin.nri_given import WHY_NOTHING
from gpuplane.host import Host
from gpuplane.kube import Client
from gpuplane.operand.nri.plugin import serve

pytestmark = pytest.mark.timeout(400)  # the first one builds what is not in the cache yet
SHARE = {names.VCUDA_CORE: "30", names.VCUDA_MEMORY: "20"}

LOOK = """
import ctypes, json, os, time
seen = {"why": os.environ.get("GPUPLANE_NO_GPU") or None, "limits": os.environ.get("GPUPLANE_LIMITS"), "gpus": 0}
try:
    cuda = ctypes.CDLL("libcuda.so.1")
    count, total, device = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_int()
    if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
        seen["gpus"] = count.value
        cuda.cuDeviceGet(ctypes.byref(device), 0)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
        seen["memory"] = total.value >> 20
except OSError:
    pass
print(json.dumps(seen), flush=True)
time.sleep(3600)
"""


class Machine:
    """The machine with gpuplane installed so that NRI brings all GPUs."""

    def __init__(self, node: KubernetesNode, client: Client) -> None:
        self.node = node
        self.client = client

    def gpuplane(self, *arguments: str) -> None:
        environment = {**os.environ, "KUBECONFIG": str(self.node.plane.kubeconfig), "NO_COLOR": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "gpuplane", *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"

    async def offers(self, resource: str, count: int) -> None:
        await until(
            self.client,
            Node,
            lambda nodes: [n for n in nodes if n.status.allocatable.get(resource) == str(count) and node_is_ready(n)],
        )

    async def seen(self, name: str, **limits: str) -> dict[str, Any]:
        """What a new pod's program says."""
        container = {
            "name": "main",
            "image": names.IMAGE,
            "command": ["/usr/bin/python3.11", "-u", "-c", LOOK],
            "resources": {"limits": limits},
        }
        spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        await self.client.create(manifest, namespace="default")
        await phase(self.client, name, "Running", "Failed")
        async with asyncio.timeout(30):
            while not (said := await log(self.client, name)):  # noqa: ASYNC110 - a log is not watched
                await asyncio.sleep(0.1)
        found: dict[str, Any] = json.loads(said)
        return found

    async def delete(self, *pods: str) -> None:
        for name in pods:
            await self.client.delete(Pod, name, "default")
        await until(
            self.client, Pod, lambda found: not {pod.metadata.name for pod in found} & set(pods), namespace="default"
        )

    def containerd_files(self) -> dict[str, bytes]:
        place = self.node.root / "etc/containerd"
        return {str(path): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}

    @contextlib.asynccontextmanager
    async def plugged(self, index: str, told: Callable[[str], object]) -> AsyncIterator[None]:
        """A plugin of ours in the row; `told` hears the name of each pod."""
        client = Host(Path(f"/proc/{self.node.pid('containerd')}/root")).connect(names.NRI_SOCKET)
        assert client is not None
        ready = asyncio.Event()
        plugin = serve(client, Told(told), lambda _: ready.set(), name=f"told{index}", index=index)
        task = asyncio.create_task(plugin)
        await ready.wait()
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Told:
    def __init__(self, told: Callable[[str], object]) -> None:
        self.told = told

    async def create(self, pod: pb.PodSandbox, container: pb.Container) -> None:
        self.told(pod.name)

    def known(self, pods: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]) -> None:
        assert {pod.namespace for pod in pods} >= {names.OPERATOR_NAMESPACE}


@pytest.fixture
async def machine_with_nri(machine: KubernetesNode) -> AsyncIterator[Machine]:
    async with Client.connect(machine.plane.kubeconfig) as client:
        yield Machine(machine, client)


async def test_gpus_and_shares_come_by_nri_or_not_at_all(machine_with_nri: Machine) -> None:
    machine, node = machine_with_nri, machine_with_nri.node
    before = machine.containerd_files()
    settings = (f"hostPaths.rootFS={node.host_root}", "cdi.nriPluginEnabled=true")
    machine.gpuplane("install", "-q", *(word for one in settings for word in ("--set", one)))
    await until(machine.client, GPUNode, lambda nodes: [n for n in nodes if gpu_node_is_ready(n)])
    await machine.offers(names.GPU_RESOURCE, 2)
    whole = await machine.seen("whole", **{names.GPU_RESOURCE: "1"})
    assert (whole["gpus"], whole["limits"], whole["why"]) == (1, None, None)
    await machine.delete("whole")

    labels = {"metadata": {"labels": {names.SHARE_LABEL: "enable"}}}
    await machine.client.patch(Node, node.name, labels)
    await machine.offers(names.VCUDA_CORE, 200)
    held = {"gpus": 1, "memory": 5120, "limits": names.LIMITS_MOUNT, "why": None}
    asked: dict[str, float] = {}
    taken: list[float] = []
    pods = [f"share{number}" for number in range(3)]
    async with (
        machine.plugged("10", lambda pod: asked.setdefault(pod, time.perf_counter())),
        machine.plugged("90", lambda pod: taken.append(time.perf_counter() - asked[pod])),
    ):
        for pod in pods:
            assert await machine.seen(pod, **SHARE) == held
    print(f"NRI: {1000 * statistics.median(taken):.1f} ms a container, of {len(taken)}")
    assert statistics.median(taken) < 0.5
    await machine.delete(*pods)

    node.kill("containerd")
    assert await machine.seen("restarted", **SHARE) == held

    def kill(pod: str) -> None:
        if pod == "alone":
            node.run("pkill", "-KILL", "-f", "run device-plugin")

    async with machine.plugged("10", kill):
        assert await machine.seen("alone", **SHARE) == {"why": WHY_NOTHING, "limits": None, "gpus": 0}
    told = await until(
        machine.client,
        Event,
        lambda events: [e for e in events if e.reason == "StartedWithoutGPU"],
        namespace="default",
    )
    assert {event.involved_object.name for event in told} == {"alone"}
    await machine.offers(names.VCUDA_CORE, 200)
    assert await machine.seen("after", **SHARE) == held
    await machine.delete("restarted", "alone", "after")

    assert machine.containerd_files() == before, "nobody touched containerd's configuration"
    machine.gpuplane("uninstall", "-q")
    await machine.client.patch(Node, node.name, {"metadata": {"labels": {names.SHARE_LABEL: None}}})
