"""A cluster with everything that the dashboard draws, on an API server in this process, with the command."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPUNode, StageName
from gpuplane.sharing import Assignment, Part, request_of, to_annotations
from kubekit.api.core import Event, Namespace, Node, Pod
from packages.gpuplane.tests.cli.status_clusters import installed
from packages.gpuplane.tests.dashboard.exporters import Holding, exporting
from tests.support.extender_world import World, gpu_pod

HTML = '<img src=x onerror="document.title=1">'
ANSI = "\x1b[31mred\x1b[0m"
PATIENCE = 60.0
IDLE = ((2, 0), (2, 3), (6, 1))  # number of the node and the GPU, which pods hold and do not use


class Started(NamedTuple):
    """A dashboard: its port, its key, and its process."""

    port: int
    key: str
    process: asyncio.subprocess.Process

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/?key={self.key}"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@contextlib.asynccontextmanager
async def dashboard(tmp_path: Path, *arguments: str) -> AsyncIterator[Started]:
    """`gpuplane dashboard` in a process of its own, once it has printed its address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpuplane", "dashboard", "--kubeconfig", str(tmp_path / "config"), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            line = (await process.stdout.readline()).decode().strip()
        place, _, key = line.partition("/?key=")
        yield Started(int(place.rpartition(":")[2]), key, process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def get(started: Started, path: str, *, host: str = "", cookie: bool = True) -> Answer:
    """One request as a browser sends it."""

    def ask() -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", started.port, timeout=PATIENCE)
        headers = {"Host": host or f"127.0.0.1:{started.port}"}
        if cookie:
            headers["Cookie"] = f"gpuplane-{started.port}={started.key}"
        connection.request("GET", path, headers=headers)
        with contextlib.closing(connection):
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    return await asyncio.to_thread(ask)


@contextlib.asynccontextmanager
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """Eight nodes with eight H100, four with four T4; shares, a GPU that is lost, a driver that fails, pods that wait;
    exporters that measure all ready nodes but one; HTML and ANSI in an event, which no picture has.
    """
    gpus: dict[tuple[str, int], list[Holding]] = {
        **{(f"gpu-h-{number:02}", index): [] for number in (1, 2, 3, 4, 5, 6, 8) for index in range(8)},
        **{(f"gpu-t-{number:02}", index): [] for number in (1, 2, 4) for index in range(4)},
    }
    del gpus["gpu-t-02", 3]  # the one that is lost
    async with installed(tmp_path) as world:
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}
        await world.client.create(space, resource=Namespace.RESOURCE)
        for number in range(1, 9):
            await node(world, f"gpu-h-{number:02}", "NVIDIA H100 80GB HBM3", 8, 81559)
        for number in range(1, 5):
            await node(world, f"gpu-t-{number:02}", "Tesla T4", 4, 15360)
        for number in (1, 2, 3, 4, 5, 6):
            for index in range(8 if number < 4 else 2 * (7 - number)):
                name, on = f"train-{number}-{index}", f"gpu-h-{number:02}"
                await held(world, name, on, index, 100)
                used = 0.0 if (number, index) in IDLE else (0.34 if (number + 2 * index) % 5 == 0 else 0.92)
                gpus[on, index].append(Holding(f"ml/{name}", 1.0, used, 71.2))
        for number, index, core in (
            (1, 0, 30),
            (1, 0, 20),
            (1, 1, 40),
            (1, 2, 100),
            (2, 0, 50),
            (2, 3, 50),
            (3, 0, 40),
        ):
            name, on = f"serve-{number}-{index}-{core}", f"gpu-t-{number:02}"
            await held(world, name, on, index, core)
            if (on, index) in gpus:
                gpus[on, index].append(Holding(f"ml/{name}", core / 100, 0.987 * core / 100, 3.4))
        await world.client.patch(
            GPUNode, "gpu-t-02", {"status": {"health": {"GPU-gpu-t-02-3": "Xid 79: fallen off the bus"}}}
        )
        await world.client.patch(
            GPUNode, "gpu-t-04", {"status": {"health": {"GPU-gpu-t-04-1": "row remapping failed"}}}
        )
        await failed(world, "gpu-h-07", "no linux-headers-6.8.0-71-generic in the node's repositories")
        await world.pod(gpu_pod("tune-42", (40, 56), nodeSelector={"pool": "t4-share"}))
        await world.pod(gpu_pod("train-9", whole=16))
        await event(world, "gpu-t-02", "GPULost", "GPU 3 lost: Xid 79: fallen off the bus")
        await event(world, "gpu-t-03", "GPULost", f"{HTML} {ANSI}")
        async with exporting(world, gpus):
            yield world


async def node(world: World, name: str, model: str, gpus: int, memory_mib: int) -> None:
    await world.node(name, gpus, memory_mib=memory_mib)
    await world.client.patch(Node, name, {"metadata": {"labels": {names.GPU_PRESENT_LABEL: "true"}}})
    began = datetime.now(UTC) - timedelta(days=9)
    stages = {
        stage.value: {"state": "done", "since": f"{began + timedelta(seconds=4 * at * at):%Y-%m-%dT%H:%M:%S.000000Z}"}
        for at, stage in enumerate(StageName)
    }
    listed = [
        {
            "index": at,
            "uuid": f"GPU-{name}-{at}",
            "model": model,
            "memoryMib": memory_mib,
            "pci": f"0000:{at:02x}:00.0",
            "links": [link(model, at, other) for other in range(gpus) if other != at],
        }
        for at in range(gpus)
    ]
    machine = {"os": "ubuntu22.04", "kernel": "6.8.0-60-generic", "runtime": "containerd", "driver": "570.133.20"}
    summary = {"stage": "ready", "since": stages["ready"]["since"], "gpus": f"{gpus}/{gpus}"}
    status = {"stages": stages, "machine": machine, "summary": summary, "gpus": listed}
    await world.client.patch(GPUNode, name, {"status": status})


def link(model: str, one: int, other: int) -> dict[str, Any]:
    """The way from a GPU to another one: NVLink on a board of H100, else PCIe, in pairs below a bridge."""
    if "H100" in model:
        return {"gpu": other, "type": "NVL", "lanes": 18}
    return {"gpu": other, "type": "PHB" if one // 2 == other // 2 else "SYS"}


async def held(world: World, name: str, on: str, index: int, core: int, space: str = "ml") -> None:
    """A pod that holds a part of a GPU, or all of it, as the extender places it."""
    manifest = gpu_pod(name, whole=1, namespace=space) if core == 100 else gpu_pod(name, (core, 16), namespace=space)
    pod = msgspec.convert(manifest, Pod)
    part = Part(f"GPU-{on}-{index}", index, core, 4096 if core < 100 else 0)
    said = to_annotations(Assignment({"c0": (part,)}), request_of(pod), on, 0)
    manifest["metadata"]["annotations"] = said
    manifest["spec"]["nodeName"] = on
    await world.pod(manifest)


async def failed(world: World, name: str, message: str) -> None:
    since = f"{datetime.now(UTC) - timedelta(minutes=14):%Y-%m-%dT%H:%M:%S.000000Z}"
    later: dict[str, Any] = dict.fromkeys([stage.value for stage in StageName][2:])
    later["driver"] = {
        "state": "failed",
        "since": since,
        "reason": "KernelHeadersMissing",
        "message": message,
        "where": "pod/nvidia-driver-daemonset-x8k2p",
        "cure": "boot 6.8.0-60 like the other 7, or ClusterPolicy spec.driver.repoConfig",
    }
    none = dict.fromkeys((names.GPU_RESOURCE, names.VCUDA_CORE, names.VCUDA_MEMORY), "0")
    await world.set_ready(name, ready=True, amounts={"cpu": "64", "memory": "256Gi", "pods": "500", **none})
    summary = {"stage": "driver", "since": since, "waitsFor": "KernelHeadersMissing"}
    await world.client.patch(GPUNode, name, {"status": {"stages": later, "summary": summary}})


async def event(world: World, about: str, reason: str, message: str) -> None:
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{about}.1", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": about},
        "reason": reason,
        "message": message,
        "lastTimestamp": now,
        "type": "Warning",
    }
    await world.client.create(body, resource=Event.RESOURCE)
