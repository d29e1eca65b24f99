"""`gpuplane dashboard` on a cluster of 1,000 nodes with 8,000 GPUs: size of the snapshot, changes, memory.

    python benchmarks/dashboard.py [NODES]

The API server and 50 viewers are in this process, the dashboard in its own. The parts that pods hold are drawn at
random from a seed. A change is a fault of one GPU; its figure is the time from the write to the last viewer's event.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from figures import show
from gpuplane.api.gpunode import GPUNode
from kubekit.api.core import Namespace
from packages.gpuplane.tests.cli.status_clusters import installed
from packages.gpuplane.tests.dashboard.scene import Started, dashboard, get, held, node
from tests.support.extender_world import World

VIEWERS, CHANGES, GPUS, WRITERS = 50, 10, 8, 16
MODEL, MEMORY_MIB = "NVIDIA H100 80GB HBM3", 81559


async def fill(world: World, nodes: int) -> None:
    """Make the nodes, and pods that hold most of their GPUs."""
    chosen, turns = random.Random(1), asyncio.Semaphore(WRITERS)
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}
    await world.client.create(space, resource=Namespace.RESOURCE)

    async def one(number: int, cores: list[int]) -> None:
        async with turns:
            name = f"gpu-node-{number:04}"
            await node(world, name, MODEL, GPUS, MEMORY_MIB)
            for index, core in enumerate(cores):
                if core:
                    await held(world, f"train-{number}-{index}", name, index, core)

    cores = [[chosen.choice((0, 10, 25, 30, 50, 70, 100, 100)) for _ in range(GPUS)] for _ in range(nodes)]
    await asyncio.gather(*(one(number, parts) for number, parts in enumerate(cores)))


async def viewer(started: Started, version: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", started.port)
    cookie = f"Cookie: gpuplane-{started.port}={started.key}"
    head = f"GET /api/changes?after={version} HTTP/1.1\r\nHost: 127.0.0.1:{started.port}\r\n{cookie}\r\n\r\n"
    writer.write(head.encode())
    return reader, writer


async def next_change(reader: asyncio.StreamReader) -> None:
    while not (await reader.readline()).startswith(b"event: change"):
        pass


async def measured(world: World, started: Started, nodes: int) -> tuple[int, list[float]]:
    """(bytes of the snapshot, seconds until all viewers have each change)."""
    packed = (await get(started, "/api/snapshot")).body
    version = msgspec.json.decode(gzip.decompress(packed))["version"]
    viewers = [await viewer(started, version) for _ in range(VIEWERS)]
    times = []
    for number in range(CHANGES):
        name = f"gpu-node-{number * nodes // CHANGES:04}"
        began = time.perf_counter()
        await world.client.patch(GPUNode, name, {"status": {"health": {f"GPU-{name}-1": f"Xid 48: change {number}"}}})
        async with asyncio.timeout(60):
            await asyncio.gather(*(next_change(reader) for reader, _ in viewers))
        times.append(time.perf_counter() - began)
    for _, writer in viewers:
        writer.close()
    return len(packed), times


async def main(nodes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with installed(Path(folder)) as world:
            await fill(world, nodes)
            began = time.perf_counter()
            async with dashboard(Path(folder)) as started:
                start = time.perf_counter() - began
                size, times = await measured(world, started, nodes)
                status = Path(f"/proc/{started.process.pid}/status").read_text()
                found = re.search(r"VmHWM:\s+(\d+)", status)
                assert found is not None
    show("snapshot, compressed", size / 1000, "kB", goal=100)
    show(f"a change until {VIEWERS} viewers have it, median", statistics.median(times), "s")
    show("  slowest", max(times), "s", goal=1)
    show(f"memory at its highest, with {VIEWERS} viewers", int(found[1]) / 1024, "MiB", goal=143)
    show("start", start, "s")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
