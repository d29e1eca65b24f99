"""An embedded cluster with gpuplane installed, as its users have it; and waiting for what they would see."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpulab.clusters import down, up
from kubekit.api.core import Deployment, Node, Pod
from kubekit.errors import Terminal
from kubekit.kube import Client, NotFound
from tests.support.until import until_objects
from tinykube.cluster import ClusterHandle, ClusterSpec, MachineSpec
from tinykube.kubelet.containers.records import ContainerRecord, is_running

PATIENCE_SECONDS = 60.0
Key = tuple[str, bool]
FAILED = pytest.StashKey[bool]()
MANIFESTS = Path(__file__).parents[5] / "shared" / "manifests"


class Cluster:
    """`handle` is of the running cluster, `client` its administrator's."""

    def __init__(self, handle: ClusterHandle, client: Client) -> None:
        self.handle = handle
        self.client = client
        self._labels: dict[str, dict[str, None]] = {}
        self._cordoned: set[str] = set()

    def root(self, node: str) -> Path:
        return self.handle.directory / "nodes" / node / "root"

    async def gpuplane(self, *arguments: str) -> str:
        """Return the output of a command, which has to succeed."""
        command = (sys.executable, "-m", "gpuplane", *arguments, "--kubeconfig", str(self.handle.kubeconfig))
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        return output.decode()

    async def until(
        self, kind: Any, holds: Callable[[list[Any]], Any], *, namespace: str | None = None, fields: str = ""
    ) -> Any:
        """Return the result of `holds(objects)` once it is true; it is called after each change."""
        return await until_objects(
            self.client, kind, holds, namespace=namespace, fields=fields, seconds=PATIENCE_SECONDS
        )

    async def amounts(self, node: str, wanted: dict[str, int]) -> None:
        """Until the node's capacity and allocatable of these resources are as wanted."""

        def right(nodes: list[Node]) -> bool:
            status = nodes[0].status if nodes else None
            return status is not None and all(
                int(status.allocatable.get(name, 0)) == int(status.capacity.get(name, 0)) == amount
                for name, amount in wanted.items()
            )

        await self.until(Node, right, fields=f"metadata.name={node}")

    async def label(self, node: str, labels: dict[str, str | None]) -> None:
        self._labels.setdefault(node, {}).update(dict.fromkeys(labels))
        await self.client.patch(Node, node, {"metadata": {"labels": labels}})

    async def cordon(self, *nodes: str) -> None:
        """Keep the scheduler from these nodes."""
        for node in nodes:
            self._cordoned.add(node)
            await self.client.patch(Node, node, {"spec": {"unschedulable": True}})

    async def give_back(self) -> None:
        """Take away what a test made, for the next one: what runs in the default namespace, cordons and labels."""
        for kind in (Deployment, Pod):
            for obj in await self.client.list(kind, "default"):
                await self.delete(kind, obj.metadata.name)
        await self.pods(lambda pods: not pods)
        for node in self._cordoned:
            await self.client.patch(Node, node, {"spec": {"unschedulable": None}})
        for node, labels in self._labels.items():
            await self.client.patch(Node, node, {"metadata": {"labels": labels}})
            await self.until(
                Node,
                lambda nodes: int(nodes[0].status.allocatable.get("tencent.com/vcuda-core", 0)) == 0,
                fields=f"metadata.name={node}",
            )

    async def create(self, path: Path, **change: Any) -> None:
        """The objects of a manifest."""
        for document in yaml.safe_load_all(path.read_text()):
            await self.client.create({**document, **change}, namespace="default")

    async def pods(self, holds: Callable[[list[Pod]], Any]) -> Any:
        return await self.until(Pod, holds, namespace="default")

    async def delete(self, kind: Any, name: str) -> None:
        try:
            await self.client.delete(kind, name, "default")
        except NotFound:
            return

    async def ended(self, name: str) -> str:
        """The log of a pod that has to succeed."""
        [pod] = await self.until(
            Pod,
            lambda pods: [pod for pod in pods if pod.status.phase in ("Succeeded", "Failed")],
            namespace="default",
            fields=f"metadata.name={name}",
        )
        log = await self.log(name)
        assert pod.status.phase == "Succeeded", f"{pod.status.message} {log}"
        return log

    async def bind(self, pod: str, node: str, annotations: dict[str, str]) -> None:
        """As the scheduler's extender does: one Binding with the assignment."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod, "annotations": annotations}}
        path = f"/api/v1/namespaces/default/pods/{pod}/binding"
        await self.client.request("POST", path, None, {**body, "target": target})

    def process(self, name: str) -> int:
        """The pid of one of the cluster's own processes, as `node-sim-1`."""
        pid: int = json.loads((self.handle.directory / "run" / f"{name}.json").read_text())["pid"]
        return pid

    def kill_containers(self, node: str, prefix: str) -> None:
        """kill -9 of the containers of pods whose names begin so."""
        for path in (self.handle.directory / "nodes" / node / "containers").glob("*/record.json"):
            record = msgspec.json.decode(path.read_bytes(), type=ContainerRecord)
            if record.pod.startswith(prefix) and record.pid and is_running(record):
                os.kill(record.pid, signal.SIGKILL)

    async def log(self, pod: str) -> str:
        return (await self.client.request("GET", f"/api/v1/namespaces/default/pods/{pod}/log")).decode()


@pytest.fixture
def manifests() -> Path:
    if not MANIFESTS.exists():
        pytest.skip("no shared manifests beside this checkout")
    return MANIFESTS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    if call.excinfo is not None:
        item.stash[FAILED] = True
    return (yield)


@pytest.fixture(scope="module")
def clusters() -> Iterator[dict[Key, ClusterHandle]]:
    """The running clusters of a module, by what they were made of."""
    made: dict[Key, ClusterHandle] = {}
    yield made
    for handle in made.values():
        asyncio.run(_down(handle))


async def _down(handle: ClusterHandle) -> None:
    with suppress(Terminal):
        await down(handle.name, base=handle.directory.parents[1])


@pytest.fixture
async def running(
    clusters: dict[Key, ClusterHandle], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Any]:
    """`cluster = await running({"sim-1": "t4-ubuntu18"}, "mig.strategy=mixed")`: installed, with these settings;
    `labels` are on its nodes before, `configs` are in the ConfigMap `configs`; without `extender` pods are bound by
    node and nothing else.

    Tests that ask for the same have the same cluster, one after the other: each takes its pods and labels away. A
    cluster gets the extender with the first test that asks for it. A test that fails has its cluster removed.
    """
    used: dict[Key, Cluster] = {}
    async with AsyncExitStack() as stack:

        async def start(
            machines: dict[str, str],
            *settings: str,
            labels: dict[str, dict[str, str]] | None = None,
            configs: dict[str, str] | None = None,
            extender: bool = False,
        ) -> Cluster:
            asked = json.dumps([machines, settings, labels, configs])
            key, without = (asked, extender), (asked, False)
            begins, grows = key not in clusters and without not in clusters, key not in clusters
            if begins:
                nodes = tuple(MachineSpec(name=n, machine=m) for n, m in machines.items())
                clusters[key] = await up(ClusterSpec(name="test", nodes=nodes), base=tmp_path_factory.mktemp("c"))
            elif grows:
                clusters[key] = clusters.pop(without)
            handle = clusters[key]
            client = await stack.enter_async_context(Client.connect(handle.kubeconfig))
            cluster = used[key] = Cluster(handle, client)
            if begins and labels:
                await cluster.until(Node, lambda nodes: len(nodes) == len(machines))
                for name, added in labels.items():
                    await client.patch(Node, name, {"metadata": {"labels": added}})
            if grows:
                parts = () if extender else ("--no-scheduler", "--admission", "none")
                words = (word for one in settings for word in ("--set", one))
                await cluster.gpuplane("install", "-q", *parts, *words)
            if begins and configs:
                body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "configs"}, "data": configs}
                await client.create(body, namespace="gpu-operator")
            return cluster

        yield start
        for key, cluster in used.items():
            if request.node.stash.get(FAILED, False):
                await _down(clusters.pop(key))
            else:
                await cluster.give_back()
