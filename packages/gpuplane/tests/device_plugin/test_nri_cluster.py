"""NRI as users of containerd 2 have it, on an embedded cluster: GPUs and shares without any configuration of the
runtime, and what becomes of a container whose plugin dies over it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.device_plugin.nri import WHY_NOTHING
from gpuplane.host import Host
from gpuplane.operand.nri.plugin import serve
from kubekit.api.core import Event, Pod
from kubekit.protocol import nri_pb2 as pb
from tests.support.gpu_programs import LOOK
from tests.support.until import until


def pod(name: str, **limits: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "python:3.11",
        "command": [sys.executable, "-c", LOOK],
        "resources": {"limits": limits},
    }
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


class Killer:
    """A plugin that is asked before the device plugin, and kills it over the pod of a name."""

    def __init__(self, cluster: Any, node: str, name: str) -> None:
        self.cluster, self.node, self.name = cluster, node, name

    async def create(self, pod: pb.PodSandbox, container: pb.Container) -> None:
        if pod.name == self.name:
            self.cluster.kill_containers(self.node, "nvidia-device-plugin")

    def known(self, pods: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]) -> None:
        pass


@contextlib.asynccontextmanager
async def killing(cluster: Any, node: str, name: str) -> AsyncIterator[None]:
    client = Host(cluster.root(node)).connect(names.NRI_SOCKET)
    assert client is not None
    ready = asyncio.Event()
    task = asyncio.create_task(
        serve(client, Killer(cluster, node, name), lambda _: ready.set(), name="killer", index="10")
    )
    await ready.wait()
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def runtime_files(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted((root / "etc/containerd").rglob("*")) if path.is_file()}


async def test_gpus_come_by_nri_or_not_at_all(running: Any, mounts: bool) -> None:
    cluster = await running({"n": "l4-ubuntu24"}, "cdi.nriPluginEnabled=true")
    before = runtime_files(cluster.root("n"))
    await cluster.until(GPUNode, lambda nodes: [node for node in nodes if node.status.summary.stage == "ready"])

    async def seen(name: str, **limits: str) -> dict[str, Any]:
        await cluster.client.create(pod(name, **limits), namespace="default")
        await cluster.pods(lambda pods: [p for p in pods if p.metadata.name == name and p.status.phase == "Running"])
        found: dict[str, Any] = json.loads(await until(lambda: cluster.log(name)))
        return found

    whole = await seen("whole", **{"nvidia.com/gpu": "1"})
    assert (whole["gpus"], whole["limits"], whole["why"]) == (1, None, None)
    await cluster.delete(Pod, "whole")

    share = {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "20"}
    await cluster.label("n", {"nvidia-device-enable": "enable"})
    await cluster.amounts("n", {"tencent.com/vcuda-core": 200})
    part = await seen("part", **share)
    limits = part.pop("limits")
    on_node = cluster.root("n") / names.LIMITS_DIR.strip("/")
    assert limits == "/etc/vcuda" if mounts else Path(limits).is_relative_to(on_node)
    assert part == {"gpus": 1, "memory": 5120, "why": None}

    async with killing(cluster, "n", "alone"):
        assert await seen("alone", **share) == {"why": WHY_NOTHING, "limits": None, "gpus": 0}
    told = await cluster.until(
        Event, lambda events: [e for e in events if e.reason == "StartedWithoutGPU"], namespace="default"
    )
    assert told[0].involved_object.name == "alone" and "has no GPU" in told[0].message
    await cluster.delete(Pod, "alone")
    await cluster.amounts("n", {"tencent.com/vcuda-core": 200})
    assert (await seen("after", **share))["memory"] == 5120

    os.kill(cluster.process("kubelet-n"), signal.SIGHUP)  # containerd starts again
    assert (await seen("restarted", **share))["memory"] == 5120
    assert runtime_files(cluster.root("n")) == before, "nobody touched the runtime's configuration"
