"""`gpuplane dashboard` on a cluster of 1,000 nodes with 8,000 GPUs: size of the snapshot, changes, memory, and the page
in Chromium, where Playwright is installed.

    python benchmarks/dashboard.py [NODES]

The API server and 50 viewers are in this process, the dashboard and Chromium in their own. The parts that pods hold are
drawn at random from a seed. A change is a fault of one GPU; its figures are the times from the write to the last
viewer's event, and to the pixels of the GPU's cell. Chromium draws on the processor here, where a laptop has a GPU:
frames are compared with those of an empty page on the same machine at the same time.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from figures import processor, show
from gpuplane.api.gpunode import GPUNode
from kubekit.api.core import Namespace
from packages.gpuplane.tests.cli.status_clusters import installed
from packages.gpuplane.tests.dashboard.scene import Started, dashboard, get, held, node
from tests.support import browser
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


def measured_snapshot(packed: bytes) -> int:
    """Return the bytes of the snapshot with a use of each GPU, as exporters would measure it; one in 50 is idle."""
    chosen = random.Random(2)
    document = msgspec.json.decode(gzip.decompress(packed))
    for facts in document["data"]["nodes"].values():
        facts["busy"] = [chosen.randrange(101) for _ in facts["held"]]
        if idle := [at for at in range(len(facts["held"])) if not chosen.randrange(50)]:
            facts["idle"] = idle
    return len(gzip.compress(msgspec.json.encode(document), 6))


async def measured(world: World, started: Started, nodes: int) -> tuple[bytes, list[float], float]:
    """(the snapshot, seconds until all viewers have each change, seconds of the processor for a change)."""
    packed = (await get(started, "/api/snapshot")).body
    version = msgspec.json.decode(gzip.decompress(packed))["version"]
    viewers = [await viewer(started, version) for _ in range(VIEWERS)]
    times, before = [], processor(started.process.pid)
    for number in range(CHANGES):
        name = f"gpu-node-{number * nodes // CHANGES:04}"
        began = time.perf_counter()
        await world.client.patch(GPUNode, name, {"status": {"health": {f"GPU-{name}-1": f"Xid 48: change {number}"}}})
        async with asyncio.timeout(60):
            await asyncio.gather(*(next_change(reader) for reader, _ in viewers))
        times.append(time.perf_counter() - began)
    spent = (processor(started.process.pid) - before) / CHANGES
    for _, writer in viewers:
        writer.close()
    return packed, times, spent


async def in_chromium(world: World, started: Started, python: Path) -> tuple[dict[str, Any], list[float]]:
    """(what opening and scrolling cost, seconds until the pixels of a GPU's cell have each change)."""
    script = Path(__file__).parents[1] / "packages/gpuplane/tests/dashboard/browse_speed.py"
    name, gpu = "gpu-node-0000", 2
    process = await asyncio.create_subprocess_exec(
        *(str(python), str(script), started.address, name, str(gpu), str(CHANGES)), stdout=asyncio.subprocess.PIPE
    )
    found: dict[str, Any] = {}
    times: list[float] = []
    began = 0.0
    assert process.stdout is not None
    async for line in process.stdout:
        facts = json.loads(line)
        if "changed" in facts:
            times.append(facts["changed"] - began)
        elif "ready" in facts:
            began, faulty = time.time(), len(times) % 2 == 0
            health = {f"GPU-{name}-{gpu}": "Xid 48: double bit error" if faulty else None}
            await world.client.patch(GPUNode, name, {"status": {"health": health}})
        found |= facts
    if await process.wait():
        raise SystemExit("the part in Chromium failed")
    return found, times


def show_chromium(found: dict[str, Any], times: list[float]) -> None:
    first, *again = found["opened"]
    print(f"in Chromium, which draws on the processor; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    show("  first contentful paint, first time", first["paint"] / 1000, "s", goal=1)
    show("  first contentful paint, again", max(one["paint"] for one in again) / 1000, "s", goal=1)
    show("  all cells drawn, first time", first["complete"] / 1000, "s")
    show("  all cells drawn, again", max(one["complete"] for one in again) / 1000, "s")
    empty, page = found["empty"], found["scrolled"]
    peer = f"an empty page {empty['rate']:.0f} /s"
    show("  frames while scrolling", page["rate"], "/s", least=59, peer=peer)
    show("  frames while the pointer moves over cells", found["hovered"]["rate"], "/s", least=59, peer=peer)
    show("  time between frames, median", page["median"], "ms", peer=f"an empty page {empty['median']:.1f} ms")
    show("    95 of 100", page["p95"], "ms", peer=f"an empty page {empty['p95']:.1f} ms")
    show("  a change until its cell is drawn, median", statistics.median(times), "s")
    show("    slowest", max(times), "s", goal=1)


async def main(nodes: int) -> None:
    try:
        python = browser.python()
    except pytest.skip.Exception as missing:
        print(missing)
        python = None
    with tempfile.TemporaryDirectory() as folder:
        async with installed(Path(folder)) as world:
            await fill(world, nodes)
            began = time.perf_counter()
            async with dashboard(Path(folder)) as started:
                start = time.perf_counter() - began
                packed, times, spent = await measured(world, started, nodes)
                status = Path(f"/proc/{started.process.pid}/status").read_text()
                memory = re.search(r"VmHWM:\s+(\d+)", status)
                assert memory is not None
                seen = await in_chromium(world, started, python) if python is not None else None
    show("snapshot, compressed", len(packed) / 1000, "kB", goal=100)
    show("  with a use of each GPU", measured_snapshot(packed) / 1000, "kB", goal=100)
    show(f"a change until {VIEWERS} viewers have it, median", statistics.median(times), "s")
    show("  slowest", max(times), "s", goal=1)
    show("  processor for a change", spent, "s")
    show(f"memory at its highest, with {VIEWERS} viewers", int(memory[1]) / 1024, "MiB", goal=143)
    show("start", start, "s")
    if seen is not None:
        show_chromium(*seen)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
