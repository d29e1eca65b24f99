"""A node in the test's own event loop: API server, machine, kubelet; and waiting without sleeping."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpulab.platform import simulated_platform
from kubekit.errors import Terminal
from kubekit.kube import Client
from simgpu.machines import build_node, machine
from tests.support.until import until
from tests.support.virtual_time import VirtualClock
from tinykube.apiserver.hooks import User
from tinykube.apiserver.server import ApiServer
from tinykube.kubelet.containers import Isolation
from tinykube.kubelet.containers.launcher import find_mode, kill_all
from tinykube.kubelet.kubelet import Kubelet, read_cluster

NODE = "sim-1"


class Api:
    """The API server, and what tests do with it."""

    def __init__(self, server: ApiServer, kubeconfig: Path) -> None:
        self.server = server
        self.registry = server.registry
        self.kubeconfig = kubeconfig
        self._changed = asyncio.Event()
        for resource in ("pods", "nodes", "events", "leases"):
            self.registry.subscribe(resource, lambda *_: self._changed.set())

    async def until(self, predicate: Callable[[], Any], what: str = "it") -> Any:
        """The first true value of `predicate`, looked at again after every write."""

        def seen() -> str:
            return json.dumps([(p["metadata"]["name"], p.get("status")) for p in self.registry.list("pods")], indent=1)

        return await until(predicate, changed=self._changed, what=what, seen=seen)

    async def create_pod(self, name: str = "one", **spec: Any) -> dict[str, Any]:
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "x"}}}
        spec = {"nodeName": NODE, "terminationGracePeriodSeconds": 1, **spec}
        return await self.registry.create("pods", "default", {**body, "spec": spec})

    def pod(self, name: str = "one") -> dict[str, Any] | None:
        return self.registry.get("pods", "default", name)

    def status(self, name: str = "one") -> dict[str, Any]:
        return (self.pod(name) or {}).get("status") or {}

    async def phase(self, phase: str, name: str = "one") -> dict[str, Any]:
        await self.until(lambda: self.status(name).get("phase") == phase, f"{name} {phase}")
        return self.status(name)

    def container(self, name: str = "one", index: int = 0) -> dict[str, Any]:
        statuses = self.status(name).get("containerStatuses") or []
        return statuses[index] if index < len(statuses) else {"state": {}, "lastState": {}, "restartCount": 0}

    def reasons(self, name: str = "one") -> set[str]:
        events = self.registry.list("events", "default")
        return {e["reason"] for e in events if e["involvedObject"]["name"] == name}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    server = await ApiServer.start(tmp_path / "pki")
    server.extensions.identity.add("test", User("admin", ("system:masters", "system:authenticated")))
    kubeconfig = tmp_path / "kubeconfig"
    cluster = {"server": server.url, "certificate-authority": str(server.authority)}
    config = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "test"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    kubeconfig.write_text(json.dumps(config))
    for name in ("default",):
        with suppress(Exception):  # where the controllers of a cluster would have made it
            await server.registry.create("serviceaccounts", "default", {"metadata": {"name": name}})
    yield Api(server, kubeconfig)
    await server.stop()


class Node:
    """A machine whose kubelet can be started, killed and started again."""

    def __init__(self, api: Api, directory: Path, profile: str, clock: Any, isolation: Isolation | None) -> None:
        self.api = api
        self.directory = directory
        self.root = directory / "root"
        self.clock = clock
        self.isolation = isolation
        build_node(directory, NODE, machine(profile))
        self.kubelet: Kubelet | None = None
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None

    async def start(self) -> Kubelet:
        self._client = Client.connect(self.api.kubeconfig)
        self.kubelet = Kubelet(
            node_name=NODE,
            directory=self.directory,
            platform=simulated_platform(self.directory),
            client=self._client,
            cluster=read_cluster(self.api.kubeconfig),
            clock=self.clock,
            isolation=self.isolation,
        )
        self._task = asyncio.create_task(self.kubelet.run())
        await self.api.until(lambda: self.api.registry.get("nodes", None, NODE), "the node")
        return self.kubelet

    async def stop(self, *, leave_containers: bool = False) -> None:
        """`leave_containers`: as after kill -9."""
        if self._task is None or self.kubelet is None or self._client is None:
            return
        if leave_containers:

            async def nothing() -> None:
                for task in list(kubelet._tasks):
                    task.cancel()
                await asyncio.gather(*kubelet._tasks, return_exceptions=True)

            kubelet = self.kubelet
            kubelet._power_off = nothing  # type: ignore[method-assign]
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._client.aclose()
        self._task = None

    def log(self, pod: str = "one", container: str = "c", attempt: int = 0, namespace: str = "default") -> str:
        paths = list(self.root.glob(f"var/log/pods/{namespace}_{pod}_*/{container}/{attempt}.log"))
        lines = paths[0].read_text().splitlines() if paths else []
        return "".join(line.split(" ", 3)[3] + "\n" for line in lines)


@pytest.fixture
async def make_node(api: Api, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """`node = await make_node(profile=..., clock=..., isolation=...)`: a node whose kubelet runs.

    A test of an isolation that this user cannot have here is skipped.
    """
    nodes: list[Node] = []

    async def make(
        profile: str = "l4-ubuntu24", *, clock: Any = None, isolation: Isolation | None = None, start: bool = True
    ) -> Node:
        if isolation is not None:
            try:
                find_mode((isolation,))
            except Terminal as problem:
                pytest.skip(str(problem))
        node = Node(api, tmp_path / "nodes" / NODE, profile, clock, isolation)
        nodes.append(node)
        if start:
            await node.start()
        return node

    yield make
    for node in nodes:
        await node.stop()
        kill_all(node.directory / "containers")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(time.time())
