"""Measures controllers and scheduler: 1,000 nodes x 8 DaemonSets from labels to ready, a heartbeat, placing free pods.

    python benchmarks/control_plane.py [NODES]

One process, no HTTP: registry with admission, controllers and scheduler as in the embedded cluster. Figures are CPU
time.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from typing import Any

from figures import show
from tinykube.apiserver import Registry
from tinykube.apiserver.extensions import furnish, install
from tinykube.controllers import Controllers
from tinykube.scheduler import Scheduler

DAEMONSETS = 8
FREE_PODS = 500
PREFIX = "nvidia.com/gpu.deploy."
Object = dict[str, Any]


def node(name: str) -> Object:
    status = {
        "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "status": status}


def daemonset(number: int) -> Object:
    labels = {"app": f"operand-{number}"}
    container = {"name": "main", "image": "gpuplane/gpuplane", "volumeMounts": [{"name": "host", "mountPath": "/host"}]}
    spec = {
        "nodeSelector": {f"{PREFIX}{number}": "true"},
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    meta = {"name": f"operand-{number}"}
    return {"metadata": meta, "spec": {"selector": {"matchLabels": labels}, "template": template}}


class Bench:
    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.registry = Registry()

    def bound(self) -> int:
        return sum(bool(pod["spec"].get("nodeName")) for pod in self.registry.list("pods", "default"))

    async def until_bound(self, wanted: int) -> None:
        while self.bound() < wanted:  # noqa: ASYNC110 - looking must cost next to nothing of what is measured
            await asyncio.sleep(0.2)

    async def run(self) -> None:
        install(self.registry)
        await furnish(self.registry)
        controllers, scheduler = Controllers(self.registry), Scheduler(self.registry)
        running = [asyncio.create_task(part.run()) for part in (controllers, scheduler)]
        for number in range(self.nodes):
            await self.registry.create("nodes", None, node(f"n{number}"))
        for number in range(DAEMONSETS):
            await self.registry.create("daemonsets", "default", daemonset(number))
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)  # as the API server does it
        await asyncio.sleep(0.5)
        pairs = self.nodes * DAEMONSETS
        show(f"{pairs} daemon pods: label, create, bind", await self.cpu(self.label()), "s", goal=15)
        show("the same pods reported ready and counted", await self.cpu(self.report()), "s", goal=5)
        before = self.registry.store.version
        await asyncio.sleep(2)
        show("writes once settled", self.registry.store.version - before, "", goal=0)
        beats = await self.cpu(self.heartbeats())
        show("a heartbeat of one node", beats / self.nodes * 1e6, "us", goal=400)
        show("a free pod, placed", await self.cpu(self.place()) / FREE_PODS * 1e3, "ms", goal=10)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    @staticmethod
    async def cpu(work: Any) -> float:
        began = time.process_time()
        await work
        return time.process_time() - began

    async def label(self) -> None:
        for number in range(DAEMONSETS):
            patch = {"metadata": {"labels": {f"{PREFIX}{number}": "true"}}}
            for name in range(self.nodes):
                await self.registry.patch("nodes", None, f"n{name}", patch, "merge")
                await asyncio.sleep(0)
        await self.until_bound(self.nodes * DAEMONSETS)

    async def report(self) -> None:
        for pod in self.registry.list("pods", "default"):
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": self.registry.now()}
            patch = {"status": {"phase": "Running", "conditions": [ready]}}
            name = pod["metadata"]["name"]
            await self.registry.patch("pods", "default", name, patch, "merge", subresource="status")
            await asyncio.sleep(0)
        while any(  # noqa: ASYNC110 - as above
            (one.get("status") or {}).get("numberAvailable") != self.nodes
            for one in self.registry.list("daemonsets", "default")
        ):
            await asyncio.sleep(0.1)

    async def heartbeats(self) -> None:
        for name in range(self.nodes):
            beat = {"type": "Ready", "status": "True", "lastHeartbeatTime": self.registry.now()}
            patch = {"status": {"conditions": [beat]}}
            await self.registry.patch("nodes", None, f"n{name}", patch, "merge", subresource="status")
            await asyncio.sleep(0)

    async def place(self) -> None:
        resources = {"requests": {"cpu": "10m", "memory": "16Mi"}}
        spec = {"containers": [{"name": "main", "image": "pause", "resources": resources}]}
        before = self.bound()
        for number in range(FREE_PODS):
            await self.registry.create("pods", "default", {"metadata": {"name": f"free-{number}"}, "spec": spec})
        await self.until_bound(before + FREE_PODS)


if __name__ == "__main__":
    asyncio.run(Bench(int(sys.argv[1]) if len(sys.argv) > 1 else 1000).run())
