"""The scheduler extender on 5,000 nodes with 40,000 GPUs and 60,000 pods: filter, prioritize and bind over HTTP.

    python benchmarks/extender.py [--nodes 5000] [--pods 60000] [--calls 2000]

The extender is a process of its own, on one core where the machine has two. Its API server is played: lists come as
the JSON that one sends, and a Binding is answered after the 7.6 ms that a real one took. The caller does what
kube-scheduler does, one pod after the other, with every node in every filter, where kube-scheduler would ask for a
tenth of them. One pod in a hundred has a request that no pod had before.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import random
import resource
import statistics
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import uvloop

from figures import show
from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.scheduler.extender import Extender
from gpuplane.scheduler.forwarding import Forwarder
from gpuplane.scheduler.leader import Leader
from gpuplane.scheduler.policies import Chosen
from gpuplane.scheduler.wire import LONGEST_BODY
from kubekit.api.core import Node, Pod
from kubekit.http_server import HttpAnswer, PostHandler, serving
from kubekit.kube import EventRecorder, SystemClock
from kubekit.kube.codec import ListPage, decode_list
from kubekit.kube.watch import EventType, WatchEvent

GPUS, MEMORY = 8, 81559
BIND_SECONDS = 0.0076  # of a real API server, docs/components/real-kubernetes.md
# What GPUs are held by, in percent; on average 1.5 pods a GPU.
FILLINGS = [(100,), (50, 30), (30, 30, 20), (40, 20), (70,), (25, 25, 25), (60, 30), ()]
PAGE = 500


def node_name(index: int) -> str:
    return f"gpu-{index:05}.pool-a.example.net"


def node(index: int) -> dict[str, Any]:
    amounts = {"cpu": "128", "memory": "1Ti", "pods": "250", names.VCUDA_CORE: "800", names.VCUDA_MEMORY: "2544"}
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.F{number}": "true" for number in range(60)}
    images = [
        {"names": [f"registry.example/image-{number}@sha256:{number:064}"], "sizeBytes": 10**9} for number in range(30)
    ]
    conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    return {
        "metadata": {"name": node_name(index), "uid": f"node-{index}", "resourceVersion": "1", "labels": labels},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": conditions, "images": images},
    }


def uuid(index: int, gpu: int) -> str:
    return f"GPU-{index:08x}-0000-4000-8000-{gpu:012x}"


def pod_uid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012}"


def gpunode(index: int, pods: int) -> dict[str, Any]:
    held: dict[str, dict[str, int]] = {}
    made = index * sum(map(len, FILLINGS))  # a node has one GPU of each filling
    for gpu in range(GPUS):
        for core in FILLINGS[(index * 3 + gpu) % len(FILLINGS)]:
            if made < pods:
                held.setdefault(uuid(index, gpu), {})[pod_uid(made)] = core
            made += 1
    gpus = [
        {
            "index": gpu,
            "uuid": uuid(index, gpu),
            "model": "NVIDIA H100 80GB HBM3",
            "memoryMib": MEMORY,
            "numa": gpu // 4,
            "links": [{"gpu": other, "type": "NVL", "lanes": 18} for other in range(GPUS) if other != gpu],
        }
        for gpu in range(GPUS)
    ]
    return {"metadata": {"name": node_name(index), "resourceVersion": "1"}, "status": {"gpus": gpus, "held": held}}


def container(core: int, units: int) -> dict[str, Any]:
    limits = {names.VCUDA_CORE: str(core)} | ({names.VCUDA_MEMORY: str(units)} if core < 100 else {})
    env = [{"name": f"VARIABLE_{number}", "value": "some value or other"} for number in range(10)]
    return {"name": "main", "image": "app", "env": env, "resources": {"limits": limits, "requests": limits}}


def bound_pods(nodes: int, count: int) -> Iterator[dict[str, Any]]:
    made = 0
    for index in range(nodes):
        for gpu in range(GPUS):
            for core in FILLINGS[(index * 3 + gpu) % len(FILLINGS)]:
                if made == count:
                    return
                memory = MEMORY if core == 100 else core * 3 * 256
                part = {"uuid": uuid(index, gpu), "index": gpu, "core": core, "memory_mib": memory}
                said = {
                    names.ASSIGNMENT_ANNOTATION: json.dumps({"containers": {"main": [part]}, "node": node_name(index)}),
                    names.PREDICATE_NODE_ANNOTATION: node_name(index),
                    names.PREDICATE_TIME_ANNOTATION: "1700000000000000000",
                    names.GPU_ASSIGNED_ANNOTATION: "false",
                    names.PREDICATE_INDEX_PREFIX + "0": str(gpu),
                }
                yield {
                    "metadata": {
                        "name": f"job-{made:06}",
                        "namespace": f"team-{made % 50}",
                        "uid": pod_uid(made),
                        "resourceVersion": "1",
                        "annotations": said,
                        "labels": {"app": "job", "team": str(made % 50)},
                    },
                    "spec": {"nodeName": node_name(index), "containers": [container(core, core * 3)]},
                    "status": {"phase": "Running"},
                }
                made += 1


USUAL = [
    *((core, core * units) for core in (10, 20, 25, 30, 40, 50, 60, 70) for units in (1, 2, 3)),
    (100, 0),
    (200, 0),
    (400, 0),
]


def new_pod(number: int) -> tuple[int, int]:
    """Return core and memory units of the pod with this number; one in a hundred has a request that is new."""
    dice = random.Random(number)
    return (dice.randint(1, 99), dice.randint(1, 300)) if number % 100 == 99 else dice.choice(USUAL)


class PlayedClient:
    """As much of a client as the extender uses, with an API server that is always well."""

    def __init__(self, nodes: int, pods: int) -> None:
        self._bound: asyncio.Queue[bytes] = asyncio.Queue()
        self._versions = 1
        self._makers: dict[Any, Any] = {
            Node: lambda: map(node, range(nodes)),
            GPUNode: lambda: (gpunode(index, pods) for index in range(nodes)),
            Pod: lambda: bound_pods(nodes, pods),
        }

    async def pages(self, kind: Any, *_: Any, bad: Any = None, **__: Any) -> AsyncIterator[ListPage]:
        items: list[Any] = []
        for obj in self._makers.get(kind, lambda: iter(()))():
            items.append(obj)
            if len(items) == PAGE:
                yield self._page(kind, items, more="more")
                items = []
        yield self._page(kind, items, more="")

    def _page(self, kind: Any, items: list[Any], *, more: str) -> ListPage:
        body = msgspec.json.encode({"metadata": {"resourceVersion": "1", "continue": more}, "items": items})
        return decode_list(kind, body, None)

    async def watch(self, kind: Any, *_: Any, **__: Any) -> AsyncGenerator[WatchEvent[Any], None]:
        while True:
            if kind is not Pod:
                await asyncio.Event().wait()
            pod = msgspec.json.decode(await self._bound.get(), type=Pod)
            yield WatchEvent(EventType.MODIFIED, pod, pod.metadata.resource_version)

    async def request(self, method: str, path: str, params: Any, binding: dict[str, Any]) -> bytes:
        """A Binding; then the watch shows the pod bound."""
        await asyncio.sleep(BIND_SECONDS)
        self._versions += 1
        meta = binding["metadata"] | {"resourceVersion": str(self._versions)}
        asked = container(*new_pod(int(meta["uid"][-12:])))
        spec = {"nodeName": binding["target"]["name"], "containers": [asked]}
        self._bound.put_nowait(msgspec.json.encode({"metadata": meta, "spec": spec}))
        return b"{}"

    async def create(self, obj: Any, **_: Any) -> Any:
        return obj


def serve(pipe: Connection, nodes: int, pods: int, policy: str) -> None:
    if os.cpu_count() == 2:
        os.sched_setaffinity(0, {1})

    async def run() -> None:
        client: Any = PlayedClient(nodes, pods)
        clock = SystemClock()
        leader = Leader(client, EventRecorder(client, "bench"), Chosen(policy), clock, time.time_ns)
        face = Extender(Forwarder(), lambda: "")
        began = time.process_time()
        ready = asyncio.Event()

        def lead() -> None:
            face.leader = leader
            ready.set()

        task = asyncio.create_task(leader.run(lead))
        await ready.wait()
        spent = time.process_time() - began
        own: dict[str, list[float]] = {}
        posts = {path: timed(path, answer, own) for path, answer in face.posts().items()}
        async with serving(face.paths(), "127.0.0.1", 0, posts=posts, longest_body=LONGEST_BODY) as port:
            pipe.send((port, spent))
            await asyncio.to_thread(pipe.recv)
            pipe.send((own, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
            await asyncio.to_thread(pipe.recv)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    uvloop.run(run())


def timed(path: str, answer: PostHandler, own: dict[str, list[float]]) -> PostHandler:
    """Writes down the CPU that each answer takes, which other programs on the machine change less than its time."""

    async def measured(body: bytes) -> HttpAnswer:
        began = time.thread_time()
        try:
            return await answer(body)
        finally:
            own.setdefault(path.strip("/"), []).append((time.thread_time() - began) * 1000)

    return measured


class Caller:
    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self.taken: dict[str, list[float]] = {}

    def call(self, verb: str, args: Any) -> Any:
        body = msgspec.json.encode(args)
        began = time.perf_counter()
        self._connection.request("POST", f"/{verb}", body)
        response = self._connection.getresponse()
        data = response.read()
        self.taken.setdefault(verb, []).append((time.perf_counter() - began) * 1000)
        if response.status != 200:
            raise SystemExit(f"{verb}: {response.status} {data[:200]!r}")
        return msgspec.json.decode(data)


def schedule(caller: Caller, everywhere: list[str], calls: int) -> int:
    """kube-scheduler's part; how many pods were bound."""
    bound = 0
    for number in range(calls):
        meta = {"name": f"new-{number}", "namespace": "bench", "uid": f"10000000-0000-4000-8000-{number:012}"}
        pod = {"metadata": meta, "spec": {"containers": [container(*new_pod(number))]}}
        kept = caller.call("filter", {"Pod": pod, "NodeNames": everywhere, "Nodes": None})["NodeNames"]
        if not kept:
            continue
        some = kept[:500]  # as many as kube-scheduler looks for among 5,000
        scores = (
            caller.call("prioritize", {"Pod": pod, "NodeNames": some})
            if len(some) > 1
            else [{"Host": some[0], "Score": 0}]
        )
        best = max(scores, key=lambda one: one["Score"])["Host"]
        args = {"PodName": meta["name"], "PodNamespace": "bench", "PodUID": meta["uid"], "Node": best}
        error = caller.call("bind", args)["Error"]
        if error:
            raise SystemExit(f"bind: {error}")
        bound += 1
    return bound


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=60_000)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--policy", default="opportunity")
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(theirs, options.nodes, options.pods, options.policy)
    )
    process.start()
    port, spent = ours.recv()
    print(f"{options.nodes} nodes, {options.nodes * GPUS} GPUs, {options.pods} pods, policy {options.policy}")
    show("CPU until it answers", spent, "s")
    caller = Caller(port)
    bound = schedule(caller, [node_name(index) for index in range(options.nodes)], options.calls)
    ours.send("measure")
    own, memory = ours.recv()
    for verb, goal in (("filter", 10.0), ("prioritize", None), ("bind", 15.0)):
        taken = caller.taken[verb]
        show(f"{verb}, median", statistics.median(taken), "ms")
        show(f"{verb}, 99 of 100", percentile(taken, 0.99), "ms", goal=goal)
        show(f"{verb}, its CPU, median", statistics.median(own[verb]), "ms")
        show(f"{verb}, its CPU, 99 of 100", percentile(own[verb], 0.99), "ms")
    show("memory at its most", memory, "MB", goal=300)
    print(f"{bound} of {options.calls} pods bound")
    ours.send("end")
    process.join()


if __name__ == "__main__":
    main()
