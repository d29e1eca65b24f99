"""An embedded cluster with gpuplane installed, as its users have it; and waiting for what they would see."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from kubekit.api.core import Node, Pod
from kubekit.kube import Client, NotFound
from tests.support.until import until_objects
from tinykube.cluster import ClusterHandle, NodeSpec
from tinykube.kubelet.containers.records import Record, is_running

PATIENCE_SECONDS = 60.0
MANIFESTS = Path(__file__).parents[3] / "shared" / "manifests"


class Cluster:
    """`handle` is of the running cluster, `client` its administrator's."""

    def __init__(self, handle: ClusterHandle, client: Client) -> None:
        self.handle = handle
        self.client = client

    def root(self, node: str) -> Path:
        return self.handle.directory / "nodes" / node / "root"

    async def gpuplane(self, *arguments: str) -> str:
        """What a command prints; it has to succeed."""
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
        """What `holds(objects)` gives once that is true; looks after each change."""
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
        await self.client.patch(Node, node, {"metadata": {"labels": labels}})

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
            record = msgspec.json.decode(path.read_bytes(), type=Record)
            if record.pod.startswith(prefix) and record.pid and is_running(record):
                os.kill(record.pid, signal.SIGKILL)

    async def log(self, pod: str) -> str:
        return (await self.client.request("GET", f"/api/v1/namespaces/default/pods/{pod}/log")).decode()


@pytest.fixture
def manifests() -> Path:
    if not MANIFESTS.exists():
        pytest.skip("no shared manifests beside this checkout")
    return MANIFESTS


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


async def _extender_config(port: str) -> str:
    """What the scheduler is told, as `gpuplane run scheduler --print-config` prints it."""
    words = ("run", "scheduler", "--print-config=kube", f"--url=http://127.0.0.1:{port}")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpuplane", *words, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


@asynccontextmanager
async def _extender(handle: ClusterHandle, port: str) -> AsyncIterator[None]:
    words = ("run", "scheduler", "--port", port, "--kubeconfig", str(handle.kubeconfig))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpuplane", *words, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture
async def running(embedded_cluster: Callable[..., Awaitable[ClusterHandle]], tmp_path: Path) -> AsyncIterator[Any]:
    """`cluster = await running({"sim-1": "t4-ubuntu18"}, "mig.strategy=mixed")`: installed, with these settings;
    `labels` are on its nodes before; with `extender` its scheduler asks gpuplane's."""
    async with AsyncExitStack() as stack:

        async def start(
            machines: dict[str, str],
            *settings: str,
            labels: dict[str, str | None] | None = None,
            extender: bool = False,
        ) -> Cluster:
            fields: dict[str, Any] = {"nodes": tuple(NodeSpec(name=n, machine=m) for n, m in machines.items())}
            port = str(_free_port())
            if extender:
                (tmp_path / "scheduler.yaml").write_text(await _extender_config(port))
                fields["scheduler_config"] = str(tmp_path / "scheduler.yaml")
            handle = await embedded_cluster(**fields)
            if extender:
                await stack.enter_async_context(_extender(handle, port))
            client = await stack.enter_async_context(Client.connect(handle.kubeconfig))
            cluster = Cluster(handle, client)
            if labels:
                await cluster.until(Node, lambda nodes: len(nodes) == len(machines))
                for name in machines:
                    await cluster.label(name, labels)
            await cluster.gpuplane("install", "-q", *(word for one in settings for word in ("--set", one)))
            return cluster

        yield start
