"""Measures the embedded API server: writes inside, writes over HTTPS, a list of 50,000 pods, watches.

    python benchmarks/apiserver.py [--pods 50000] [--requests 5000]

Figures are CPU time of the server's process, so that a busy machine changes them little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import ssl
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from tinykube.apiserver import Registry, User
from tinykube.apiserver.extensions import install
from tinykube.apiserver.journal import SQLiteJournal
from tinykube.apiserver.server import ApiServer

TOKEN = "bench"


def pod(name: str, node: str = "") -> dict[str, Any]:
    """A pod as a DaemonSet makes it, about 2 KB."""
    mounts = [{"name": f"v{i}", "mountPath": f"/mnt/v{i}"} for i in range(5)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"app": "bench", "pod-template-generation": "1", "controller-revision-hash": "5d8f7"},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "bench", "uid": "u-1", "controller": True}
            ],
        },
        "spec": {
            **({"nodeName": node} if node else {}),
            "containers": [
                {
                    "name": "main",
                    "image": "gpuplane/gpuplane:1",
                    "args": ["run", "driver"],
                    "env": [{"name": f"E{i}", "value": "x"} for i in range(6)],
                    "volumeMounts": mounts,
                }
            ],
            "volumes": [{"name": f"v{i}", "hostPath": {"path": f"/run/v{i}"}} for i in range(5)],
            "tolerations": [{"key": f"k{i}", "operator": "Exists"} for i in range(6)],
        },
    }


def status(index: int) -> dict[str, Any]:
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    return {"status": {"phase": "Running", "podIP": f"10.0.0.{index % 250}", "conditions": conditions}}


async def measure(what: str, count: int, work: Callable[[int], Awaitable[object]]) -> None:
    cpu = time.process_time()
    for index in range(count):
        await work(index)
    spent = time.process_time() - cpu
    print(f"{what:<58}{spent / count * 1e6:8.0f} us")


async def inside(count: int, journal: Path | None) -> None:
    registry = Registry()
    if journal is not None:
        registry.restore(SQLiteJournal(journal), [], 0)
    install(registry)
    await registry.create("serviceaccounts", "default", {"metadata": {"name": "default"}})
    suffix = ", journal" if journal else ""

    async def create(index: int) -> object:
        return await registry.create("pods", "default", pod(f"p-{index}"))

    async def patch(index: int) -> object:
        return await registry.patch("pods", "default", f"p-{index}", status(index), "merge", subresource="status")

    async def apply(index: int) -> object:
        config = {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b", "c": "d"}}}
        return await registry.patch("pods", "default", f"p-{index}", config, "apply", manager="bench")

    async def same(index: int) -> object:
        return await apply(0)

    async def update(index: int) -> object:
        old = registry.get("pods", "default", f"p-{index}")
        assert old is not None
        new = {**old, "metadata": {**old["metadata"], "annotations": {"x": str(index)}}}
        return await registry.update("pods", "default", f"p-{index}", new)

    async def bind(index: int) -> object:
        lease = {"metadata": {"name": f"n-{index}"}, "spec": {"holderIdentity": "x", "renewTime": "2026"}}
        return await registry.create("leases", "kube-node-lease", lease)

    async def delete(index: int) -> object:
        return await registry.delete("pods", "default", f"p-{index}")

    await measure(f"create a pod{suffix}", count, create)
    await measure(f"merge patch of its status{suffix}", count, patch)
    await measure(f"server-side apply of two labels{suffix}", count, apply)
    await measure(f"the same apply again{suffix}", count, same)
    await measure(f"update of the whole pod{suffix}", count, update)
    await measure(f"create a lease{suffix}", count, bind)
    await measure(f"delete a pod{suffix}", count, delete)


# -- over HTTPS --------------------------------------------------------------------------------------------------
def serve(pki: str, pods: int, pipe: Connection) -> None:
    async def main() -> None:
        server = await ApiServer.start(Path(pki))
        server.extensions.identity.add(TOKEN, User("bench", ("system:masters",)))
        await server.registry.create("serviceaccounts", "default", {"metadata": {"name": "default"}})
        loop = asyncio.get_running_loop()
        pipe.send((server.port, str(server.authority)))
        while (asked := await loop.run_in_executor(None, pipe.recv)) != "stop":
            if asked == "fill":
                for index in range(pods):
                    await server.registry.create("pods", "default", pod(f"big-{index}", f"node-{index % 5000}"))
            usage = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send((usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024))
        await server.stop()

    uvloop.run(main())


class Client:
    """HTTP/1.1 on one kept connection, as thin as can be: the figures are to be the server's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int, authority: str) -> Client:
        context = ssl.create_default_context(cafile=authority)
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context, limit=1 << 26))

    def send(self, method: str, path: str, body: object = None, kind: str = "application/json") -> None:
        data = msgspec.json.encode(body) if body is not None else b""
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\nuser-agent: bench/1\r\n"
            f"content-type: {kind}\r\naccept: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        self.writer.write(head.encode() + data)

    async def receive(self) -> tuple[int, bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.partition(b"content-length: ")[2].split(b"\r\n", 1)[0])
        return int(head.split(b" ", 2)[1]), await self.reader.readexactly(size)

    async def request(self, method: str, path: str, body: object = None, kind: str = "application/json") -> bytes:
        self.send(method, path, body, kind)
        code, data = await self.receive()
        if code >= 300:
            raise RuntimeError(data.decode())
        return data

    async def watch(self, path: str) -> None:
        self.send("GET", path)
        await self.reader.readuntil(b"\r\n\r\n")


async def outside(pipe: Connection, port: int, authority: str, count: int, pods: int) -> None:
    def usage(ask: str = "") -> tuple[float, int]:
        pipe.send(ask)
        answer: tuple[float, int] = pipe.recv()
        return answer

    client = await Client.connect(port, authority)

    async def timed(what: str, times: int, work: Callable[[int], Awaitable[object]]) -> None:
        cpu, _ = usage()
        wall = time.perf_counter()
        for index in range(times):
            await work(index)
        wall = time.perf_counter() - wall
        spent = usage()[0] - cpu
        print(f"{what:<58}{spent / times * 1e6:8.0f} us   {times / wall:7.0f}/s on one connection")

    root = "/api/v1/namespaces/default/pods"
    merge = "application/merge-patch+json"
    await timed("HTTPS: create a pod", count, lambda i: client.request("POST", root, pod(f"p-{i}", "n")))
    await timed("HTTPS: get", count, lambda i: client.request("GET", f"{root}/p-{i}"))
    await timed(
        "HTTPS: merge patch of its status",
        count,
        lambda i: client.request("PATCH", f"{root}/p-{i}/status", status(i), merge),
    )
    config = {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}}}
    await timed(
        "HTTPS: server-side apply",
        count,
        lambda i: client.request(
            "PATCH", f"{root}/p-{i}?fieldManager=x&force=true", config, "application/apply-patch+yaml"
        ),
    )
    watchers = [await Client.connect(port, authority) for _ in range(100)]
    for index, watcher in enumerate(watchers):
        await watcher.watch(f"/api/v1/pods?watch=true&fieldSelector=spec.nodeName%3Dnode-{index}&resourceVersion=0")
    await timed(
        "HTTPS: the same with 100 watchers of other nodes",
        count,
        lambda i: client.request("PATCH", f"{root}/p-{i}/status", {"status": {"podIP": "1"}}, merge),
    )
    for watcher in watchers:
        watcher.writer.close()
    watchers = [await Client.connect(port, authority) for _ in range(100)]
    for watcher in watchers:
        await watcher.watch("/api/v1/pods?watch=true&allowWatchBookmarks=true&timeoutSeconds=600")
    drains = [asyncio.create_task(drain(watcher)) for watcher in watchers]
    await timed(
        "HTTPS: the same with 100 watchers that get every event",
        200,
        lambda i: client.request("PATCH", f"{root}/p-{i}/status", {"status": {"podIP": "2"}}, merge),
    )
    for task, watcher in zip(drains, watchers, strict=True):
        task.cancel()
        watcher.writer.close()
    cpu, before = usage()
    spent, after = usage("fill")
    print(f"fill with {pods} pods: {spent - cpu:.1f} CPU-s, server grows from {before} to {after} MiB")
    cpu, _ = usage()
    wall = time.perf_counter()
    token, found, size = "", 0, 0
    while True:
        data = await client.request("GET", f"/api/v1/pods?limit=500&continue={token}")
        size += len(data)
        page = json.loads(data)
        found += len(page["items"])
        token = page["metadata"].get("continue", "")
        if not token:
            break
    spent = usage()[0] - cpu
    wall = time.perf_counter() - wall
    print(f"list {found} pods ({size >> 20} MiB) in pages of 500: {spent:.2f} CPU-s of the server, {wall:.1f} s")
    cpu, _ = usage()
    await client.request("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-7")
    print(f"list one node's pods of them: {(usage()[0] - cpu) * 1e3:.1f} ms")


async def drain(client: Client) -> None:
    while await client.reader.read(1 << 16):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=50_000)
    parser.add_argument("--requests", type=int, default=3_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        uvloop.run(inside(options.requests, None))
        uvloop.run(inside(options.requests, Path(directory) / "objects.sqlite"))
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(directory, options.pods, theirs))
        process.start()
        try:
            port, authority = ours.recv()
            uvloop.run(outside(ours, port, authority, options.requests, options.pods))
        finally:
            ours.send("stop")
            process.join(10)


if __name__ == "__main__":
    main()
