"""The cluster's dashboard with 50 tenants, each with rights of its own, on 1,000 nodes with 8,000 GPUs.

    python benchmarks/dashboard_tenants.py [NODES]

The API server, which also answers the reviews of tokens and rights, and the viewers are in this process; the dashboard
is in its own. Each tenant may view one namespace, and pods of all of them are spread over the nodes at random, from a
seed. A change is a fault of one GPU; its figures are the times from the write to the last viewer's next snapshot of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from figures import processor, show
from gpuplane.dashboard.viewers import REFUSED_SECONDS
from kubekit.api.core import Namespace
from packages.gpuplane.tests.cli.status_clusters import installed
from packages.gpuplane.tests.dashboard.in_cluster import InCluster, in_cluster, viewer
from packages.gpuplane.tests.dashboard.scene import held, node
from tests.support.extender_world import World

TENANTS, CHANGES, GPUS, WRITERS = 50, 10, 8, 16
MODEL, MEMORY_MIB = "NVIDIA H100 80GB HBM3", 81559


async def fill(world: World, nodes: int) -> None:
    """Make the tenants, the nodes, and pods that hold most of their GPUs."""
    chosen, turns = random.Random(1), asyncio.Semaphore(WRITERS)
    for number in range(TENANTS):
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"team-{number}"}}
        await world.client.create(space, resource=Namespace.RESOURCE)

    async def one(number: int, parts: list[tuple[int, int]]) -> None:
        async with turns:
            name = f"gpu-node-{number:04}"
            await node(world, name, MODEL, GPUS, MEMORY_MIB)
            for index, (core, tenant) in enumerate(parts):
                if core:
                    await held(world, f"train-{number}-{index}", name, index, core, f"team-{tenant}")

    cores = (0, 10, 25, 30, 50, 70, 100, 100)
    # The first GPU of each node stays free for the pods that come later.
    drawn = [
        [(0, 0), *((chosen.choice(cores), chosen.randrange(TENANTS)) for _ in range(1, GPUS))] for _ in range(nodes)
    ]
    await asyncio.gather(*(one(number, parts) for number, parts in enumerate(drawn)))


async def until_change(reader: asyncio.StreamReader, word: bytes) -> None:
    """Read until a change has a word."""
    kind = b""
    while line := await reader.readline():
        if line.startswith(b"event: "):
            kind = line
        elif line.startswith(b"data: ") and b"change" in kind and word in line:
            return
    raise SystemExit("a stream of changes has ended")


def most_memory(page: InCluster) -> float:
    """Return the most MiB that the dashboard has had so far."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{page.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


async def changes(world: World, readers: list[asyncio.StreamReader], first: int, nodes: int) -> list[float]:
    """Return the seconds until each viewer has a change, for several of them. All viewers see held GPUs."""
    times = []
    for number in range(first, first + CHANGES):
        name = f"gpu-node-{number * nodes // (2 * CHANGES):04}"
        began = time.perf_counter()
        await held(world, f"late-{number}", name, 0, 100, f"team-{number % TENANTS}")
        async with asyncio.timeout(120):
            await asyncio.gather(*(until_change(reader, b'"held":[') for reader in readers))
        times.append(time.perf_counter() - began)
    return times


async def without_changes(page: InCluster, readers: list[asyncio.StreamReader]) -> float:
    """Return the part of a core that the dashboard takes while streams are open and nothing changes."""

    async def drained(reader: asyncio.StreamReader) -> None:
        while await reader.readline():
            pass

    draining = [asyncio.create_task(drained(reader)) for reader in readers]
    before, began = processor(page.process.pid), time.perf_counter()
    await asyncio.sleep(REFUSED_SECONDS + 5)
    part = (processor(page.process.pid) - before) / (time.perf_counter() - began)
    for task in draining:
        task.cancel()
    await asyncio.gather(*draining, return_exceptions=True)
    return part


def show_changes(what: str, times: list[float]) -> None:
    show(what, statistics.median(times), "s", goal=1)
    show("  slowest", max(times), "s", goal=1)


async def measured(world: World, page: InCluster, nodes: int) -> None:
    tenants = [f"tenant-{number}" for number in range(TENANTS)]
    before, began = processor(page.process.pid), time.perf_counter()
    snapshots = await asyncio.gather(*(page.get("/api/snapshot", name) for name in tenants))
    show(f"first snapshots of {TENANTS} tenants at once", time.perf_counter() - began, "s")
    show("  processor", processor(page.process.pid) - before, "s")
    show("  largest, compressed", max(len(one.body) for one in snapshots) / 1000, "kB", goal=100)
    async with contextlib.AsyncExitStack() as streams:
        readers = [
            await streams.enter_async_context(page.stream(name, (await page.snapshot(name))["version"]))
            for name in tenants
        ]
        before = processor(page.process.pid)
        times = await changes(world, readers, 0, nodes)
        spent = (processor(page.process.pid) - before) / CHANGES
        show_changes(f"a change until {TENANTS} tenants have it, median", times)
        show("  processor of the dashboard for a change", spent, "s")
        show("  of a core without changes, for reviews", 100 * await without_changes(page, readers), "%")
        show_changes("a change after that, median", await changes(world, readers, CHANGES, nodes))
    show(f"memory at its highest, with {TENANTS} tenants", most_memory(page), "MiB", goal=143)


async def main(nodes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with installed(Path(folder)) as world:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}}
            await world.client.apply(body, "bench", resource=Namespace.RESOURCE)
            await fill(world, nodes)
            for number in range(TENANTS):
                await viewer(world, f"tenant-{number}", "view", f"team-{number}")
            async with in_cluster(world, Path(folder)) as page:
                await measured(world, page, nodes)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
