"""Memory of the autoscaler's process with 5,000 nodes and 60,000 pods, and the time until it has seen them.

    python benchmarks/autoscaler_memory.py [NODES PODS]

Every controller runs, against a server in a process of its own that sends lists in pages and then quiet watches. Writes
are refused as by a server that is overloaded. Measured when every object has been seen, and after the facts of a pass
over all nodes. Peer: Karpenter's own limit of its test with 2,000 nodes, 1,330 MB.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import multiprocessing
import resource
import sys
import time
from collections.abc import AsyncIterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from figures import show
from large_cluster import POOL, TYPES, cluster

GOAL_MB = 400.0
PEER = "1,330 Karpenter at 2,000 nodes"
POOL_OBJECT = {
    "metadata": {"name": POOL, "uid": "pool", "resourceVersion": "1"},
    "spec": {
        "template": {"spec": {"nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": POOL}}},
        "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"},
    },
}
CLASS_OBJECT = {"metadata": {"name": POOL, "uid": "class", "resourceVersion": "1"}, "spec": {}}


def serve(nodes: int, pods: int, out: Connection) -> None:
    made = cluster(nodes, pods)
    lists = {
        "nodes": [json.dumps(one).encode() for one in made[0]],
        "nodeclaims": [json.dumps(one).encode() for one in made[1]],
        "pods": [json.dumps(one).encode() for one in made[2]],
        "nodepools": [json.dumps(POOL_OBJECT).encode()],
        "ec2nodeclasses": [json.dumps(CLASS_OBJECT).encode()],
    }
    del made

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                await reader.readexactly(int(length[0].split(b":")[1]) if length else 0)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            method, path, _ = head.split(b" ", 2)
            parts = urlsplit(path.decode())
            params = {key: values[0] for key, values in parse_qs(parts.query).items()}
            if method != b"GET":
                body = b'{"kind":"Status","code":429,"reason":"TooManyRequests","message":"read only"}'
                writer.write(b"HTTP/1.1 429 Busy\r\nRetry-After: 30\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
                continue
            if "watch" in params:
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                await writer.drain()
                await asyncio.Event().wait()
            found = lists.get(parts.path.rpartition("/")[2], [])
            start = int(params.get("continue") or 0)
            end = min(start + int(params.get("limit") or len(found) or 1), len(found))
            more = f',"continue":"{end}"' if end < len(found) else ""
            body = f'{{"metadata":{{"resourceVersion":"1000000"{more}}},"items":['.encode()
            body += b",".join(found[start:end]) + b"]}"
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()

    async def main() -> None:
        server = await asyncio.start_server(one, "127.0.0.1", 0)
        out.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


class StillCloud:
    """A cloud in which every instance runs."""

    def __init__(self) -> None:
        self.running: list[Any] = []

    async def types(self) -> Sequence[Any]:
        return [*TYPES.values()]

    async def resolve(self, machines: Any) -> Any:
        from gpuplane.autoscaler.providers.provider import ResolvedClass

        return ResolvedClass(zones=("zone-a",), images=(("image-1", "amd64", False),))

    async def instances(self) -> Sequence[Any]:
        return self.running

    async def instance(self, provider_id: str) -> Any:
        return next((one for one in self.running if one.provider_id == provider_id), None)

    async def interruptions(self) -> AsyncIterator[Any]:
        return
        yield

    async def aclose(self) -> None: ...


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


async def measure(port: int, nodes: int, pods: int) -> None:
    from gpuplane.autoscaler.process import AutoscalerProcess
    from gpuplane.autoscaler.providers.provider import CloudInstance
    from gpuplane.autoscaler.settings import AutoscalerSettings
    from kubekit.kube import ApiEndpoint, Client
    from kubekit.kube.auth import StaticAuth

    logging.disable(logging.ERROR)
    began, base = time.monotonic(), resident_mb()
    cloud = StillCloud()
    cloud.running = [
        CloudInstance(f"kwok:///zone-a/i-{n:05}", f"claim-{n}", POOL, "s-8x", "zone-a", "on-demand", "image-1",
                      "running", "2026-11-01T00:00:00Z")
        for n in range(nodes)
    ]  # fmt: skip
    client = Client(ApiEndpoint(host="127.0.0.1", port=port, auth=StaticAuth()))
    process = AutoscalerProcess(client, cast(Any, cloud), AutoscalerSettings("bench"))
    task = asyncio.create_task(process.run())
    every = [*process.watch.informers, *process.informers._informers.values()]
    try:
        while not all(one.has_synced for one in every):
            await asyncio.sleep(0.2)
            if task.done():
                task.result()
        show(f"{nodes:,} nodes, {pods:,} pods: seen after", time.monotonic() - began, "s")
        ctypes.CDLL(None).malloc_trim(0)
        show("  resident", resident_mb(), "MB", goal=GOAL_MB, peer=f"{PEER}; {base:.0f} before")
        world = await process.supply.world()
        question = world.question(["node-1"])
        assert len(question.nodes) == nodes - 1
        assert question.asks
        show("  with the facts of a pass", resident_mb(), "MB", goal=GOAL_MB)
        await asyncio.sleep(20)  # controllers go over every claim
        show("  most so far", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, "MB", goal=GOAL_MB)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for each in every:
            await each.stop()
        await client.aclose()


def main() -> None:
    nodes, pods = (int(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 2 else (5_000, 60_000)
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(nodes, pods, there), daemon=True)
    server.start()
    asyncio.run(measure(here.recv(), nodes, pods))
    server.terminate()


if __name__ == "__main__":
    main()
