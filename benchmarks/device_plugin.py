"""The device plugin: which GPUs, the kubelet's calls over the socket, and what the process holds.

    python benchmarks/device_plugin.py

The choice is timed for every size among 16 GPUs of four topologies, the calls on a plugin with shares of 8 GPUs (800
core ids, 2,560 of memory) in this process, so that the kubelet's part counts too, and memory on an embedded cluster.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import grpc.aio

from figures import show
from gpulab.clusters import down, up
from gpuplane import names
from gpuplane.api.pluginconfig import PluginConfig
from gpuplane.device_plugin.allocation.topology import TopologyChooser
from gpuplane.device_plugin.grpc_kubelet import methods
from gpuplane.device_plugin.plugin import UnitPlugin
from gpuplane.device_plugin.shares import SharePlugin
from gpuplane.device_plugin.shares import ids as share_ids
from gpuplane.hardware import GPUFacts
from gpuplane.sharing.units import resources
from kubekit.api.core import Node
from kubekit.kube import Client, Informer
from kubekit.protocol import deviceplugin_pb2 as pb
from kubekit.rpc_server import serving
from operand_memory import GOAL_MB, GPUPLANE, held, operands
from tinykube.cluster import ClusterSpec, MachineSpec
from tinykube.protocol import deviceplugin_pb2_grpc as rpc

COUNT, ROUNDS = 16, 400
PREFERENCE_MS, ALLOCATE_MS = 1.0, 5.0


def topologies() -> dict[str, Callable[[int, int], int]]:
    some = random.Random(1)
    weights = {(a, b): some.choice((1, 2, 3, 4, 5, 40, 120)) for a in range(COUNT) for b in range(a)}
    return {
        "one NVSwitch": lambda a, b: 180,
        "PCIe pairs, two sockets": lambda a, b: 5 if a // 2 == b // 2 else 3 if a // 8 == b // 8 else 1,
        "NVLink groups of four": lambda a, b: 40 if a // 4 == b // 4 else 3 if a // 8 == b // 8 else 1,
        "no two pairs alike": lambda a, b: weights[max(a, b), min(a, b)],
    }


def preference() -> None:
    ids = [f"GPU-{i}" for i in range(COUNT)]
    for name, near in topologies().items():
        matrix = [[near(a, b) if a != b else 0 for b in range(COUNT)] for a in range(COUNT)]
        start = time.perf_counter()
        chooser = TopologyChooser(ids, matrix)
        made = (time.perf_counter() - start) * 1000
        worst = 0.0
        for size in range(1, COUNT):
            for available in (ids, ids[1:], ids[::2] + ids[1:8:2]):
                if size <= len(available):
                    worst = max(worst, statistics.median(_timed(chooser, available, size) for _ in range(9)))
        show(f"preferred of 16, {name}, worst size", worst, "ms", goal=PREFERENCE_MS)
        show("  once for the topology", made, "ms")


def _timed(chooser: TopologyChooser, available: list[str], size: int) -> float:
    start = time.perf_counter()
    chooser.choose(available, [], size)
    return (time.perf_counter() - start) * 1000


async def calls(folder: Path) -> None:
    gpus = [
        GPUFacts(index=i, minor=i, uuid=f"GPU-{i:036}", model="H100", memory_bytes=80 << 30, pci="", compute=(9, 0))
        for i in range(8)
    ]
    [(resource, units)] = resources(gpus, PluginConfig()).items()
    core = SharePlugin(names.VCUDA_CORE, gpus, PluginConfig(), None, None)
    every = [device.id for device in share_ids.devices(gpus, names.VCUDA_CORE, {})]
    whole = [gpu.uuid for gpu in gpus]
    for what, plugin, available, size in (
        ("whole GPUs", UnitPlugin(resource, units, gpus, PluginConfig()), whole, 4),
        ("30 of 800 core ids", core, every, 30),
    ):
        socket = folder / f"{size}.sock"
        wanted = pb.PreferredAllocationRequest()
        wanted.container_requests.add(available_deviceIDs=available, allocation_size=size)
        allocate = pb.AllocateRequest()
        allocate.container_requests.add(devices_ids=available[:size])
        async with serving(methods(plugin), socket), grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            stub = rpc.DevicePluginStub(channel)
            for name, ask, request in (
                ("GetPreferredAllocation", stub.GetPreferredAllocation, wanted),
                ("Allocate", stub.Allocate, allocate),
            ):
                times = []
                for _ in range(ROUNDS):
                    start = time.perf_counter()
                    await ask(request)
                    times.append((time.perf_counter() - start) * 1000)
                goal = ALLOCATE_MS if name == "Allocate" else None
                show(f"{name}, {what}, 99th percentile", statistics.quantiles(times, n=100)[-1], "ms", goal=goal)
                show("  median", statistics.median(times), "ms")


async def memory(folder: Path) -> None:
    """Resident memory of a plugin that offers shares, with its agent and its HTTP server."""
    spec = ClusterSpec(name="bench", nodes=(MachineSpec(name="shares", machine="p40-ubuntu22"),))
    handle = await up(spec, base=folder)
    try:
        async with Client.connect(handle.kubeconfig) as client:
            process = await asyncio.create_subprocess_exec(
                *GPUPLANE, "install", "-q", "--kubeconfig", str(handle.kubeconfig)
            )
            assert await process.wait() == 0
            nodes, changed = Informer(client, Node), asyncio.Event()
            nodes.add_handler(lambda old, new: changed.set())
            nodes.start()
            await nodes.synced()
            while not nodes.items():
                changed.clear()
                await changed.wait()
            for label, offered in ((None, names.GPU_RESOURCE), ("enable", names.VCUDA_CORE)):
                await client.patch(Node, "shares", {"metadata": {"labels": {names.SHARE_LABEL: label}}})
                while not any(int(node.status.allocatable.get(offered, 0)) for node in nodes.items()):
                    changed.clear()
                    await changed.wait()
                await asyncio.sleep(5)  # its first looks at the shares
                port = client.endpoint.port
                [proc] = [proc for name, proc in operands(str(port)) if name == "device-plugin"]
                resident, proportional = held(proc)
                show(f"memory of a plugin that offers {offered}", resident, "MB", goal=GOAL_MB)
                show("  proportional", proportional, "MB")
            await nodes.stop()
    finally:
        await down("bench", base=folder)


def main() -> None:
    preference()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(calls(Path(directory)))
        asyncio.run(memory(Path(directory) / "clusters"))


if __name__ == "__main__":
    main()
