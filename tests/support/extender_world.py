"""Clusters for the extender's tests: an API server in this process, GPUs, pods, and the extender behind its port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from gpuplane import names
from gpuplane.api.crds import crds
from gpuplane.api.gpunode import GPUNode
from gpuplane.operator.installation import installation, resource_of
from gpuplane.scheduler.defrag.limits import MoveLimits
from gpuplane.scheduler.extender import Extender
from gpuplane.scheduler.forwarding import Forwarder
from gpuplane.scheduler.leader import Leader
from gpuplane.scheduler.policies import Chosen
from gpuplane.scheduler.wire import LONGEST_BODY
from gpuplane.sharing import violations
from kubekit.api.core import ConfigMap, Event, Node, Pod
from kubekit.http_server import serving
from kubekit.kube import ApiEndpoint, Client, EventRecorder, NotFound, SystemClock
from kubekit.kube.auth import StaticAuth
from kubekit.kube.tasks import first_of
from tests.support.node_taints import follow_conditions
from tests.support.until import until
from tinykube.apiserver.hooks import User
from tinykube.apiserver.identity import ADMIN
from tinykube.apiserver.server import ApiServer

ACCOUNT = "system:serviceaccount:gpu-operator:gpuplane-scheduler"
MODEL, MEMORY = "Tesla T4", 15360
PATIENCE = 60.0


class Answered:
    """An HTTP answer."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def http(port: int, method: str, path: str, body: bytes = b"", tls: ssl.SSLContext | None = None) -> Answered:
    """One request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, limit=1 << 20)
    try:
        writer.write(f"{method} {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode())
        writer.write(body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-le"))
        return Answered(int(head.split()[1]), await reader.readexactly(length))
    finally:
        writer.close()


def gpu_pod(
    name: str, *shares: tuple[int, int], namespace: str = "default", whole: int = 0, **spec: Any
) -> dict[str, Any]:
    """A pod with one container for each (core, memory in units of 256 MiB); or with `whole` GPUs by nvidia.com/gpu."""
    asked: list[dict[str, str]] = [
        {names.VCUDA_CORE: str(core), **({names.VCUDA_MEMORY: str(memory)} if memory else {})}
        for core, memory in shares
    ]
    if whole:
        asked.append({names.GPU_RESOURCE: str(whole)})
    containers = [
        {"name": f"c{index}", "image": "app", "resources": {"limits": limits, "requests": limits}}
        for index, limits in enumerate(asked)
    ]
    metadata = {"name": name, "namespace": namespace, **spec.pop("metadata", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers, **spec}}


class World:
    """An API server with nodes and pods. `client` is an administrator's."""

    def __init__(self, server: ApiServer, client: Client) -> None:
        self.server = server
        self.client = client

    def connect(self) -> Client:
        tls = ssl.create_default_context(cafile=str(self.server.authority))
        return Client(ApiEndpoint(host="127.0.0.1", port=self.server.port, auth=StaticAuth(token="admin"), tls=tls))

    def kubeconfig(self, token: str = "admin", namespace: str = "default") -> str:
        """A kubeconfig for the user with that token."""
        cluster = {
            "server": f"https://127.0.0.1:{self.server.port}",
            "certificate-authority": str(self.server.authority),
        }
        context = {"cluster": "here", "user": "me", "namespace": namespace}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "prod",
                "clusters": [{"name": "here", "cluster": cluster}],
                "contexts": [{"name": "prod", "context": context}],
                "users": [{"name": "me", "user": {"token": token}}],
            }
        )

    async def node(
        self,
        name: str,
        gpus: int = 2,
        *,
        memory_mib: int = MEMORY,
        ready: bool = True,
        labels: Mapping[str, str] | None = None,
        gpunode: bool = True,
    ) -> None:
        """A node with GPUs as gpuplane prepares it; without `gpunode` as gpu-manager advertises it."""
        amounts = {
            "cpu": "64",
            "memory": "256Gi",
            "pods": "500",
            names.VCUDA_CORE: str(100 * gpus),
            names.VCUDA_MEMORY: str(memory_mib * gpus // 256),
            names.GPU_RESOURCE: str(gpus),
        }
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": dict(labels or {})}}
        await self.client.create(node, resource=Node.RESOURCE)
        await self.set_ready(name, ready=ready, amounts=amounts)
        if gpunode:
            await self.set_gpus(name, gpus, memory_mib=memory_mib)

    async def set_ready(self, name: str, *, ready: bool, amounts: Mapping[str, str] | None = None) -> None:
        condition = {"type": "Ready", "status": str(ready), "reason": "Test", "lastHeartbeatTime": None}
        status: dict[str, Any] = {"conditions": [condition]}
        if amounts is not None:
            status |= {"capacity": dict(amounts), "allocatable": dict(amounts)}
        await self.client.patch(Node, name, {"status": status}, subresource="status")
        await follow_conditions(self.server.registry, name)

    async def set_gpus(
        self, name: str, gpus: int, *, memory_mib: int = MEMORY, health: Mapping[str, str] | None = None
    ) -> None:
        listed = [
            {"index": index, "uuid": f"GPU-{name}-{index}", "model": MODEL, "memoryMib": memory_mib}
            for index in range(gpus)
        ]
        body = {"metadata": {"name": name}, "status": {"gpus": listed, "health": dict(health or {})}}
        await self.client.apply(body, "test", resource=GPUNode.RESOURCE)

    async def pod(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return await self.client.create(manifest, resource=Pod.RESOURCE)

    async def get(self, name: str, namespace: str = "default") -> Pod:
        return await self.client.get(Pod, name, namespace)

    async def delete(self, name: str, namespace: str = "default") -> None:
        await self.client.delete(Pod, name, namespace, grace_seconds=0)

    async def end(self, name: str, namespace: str = "default", phase: str = "Succeeded") -> None:
        await self.client.patch(Pod, name, {"status": {"phase": phase}}, namespace, subresource="status")

    async def quota(self, text: str, name: str = names.QUOTA_CONFIGMAP, key: str = names.QUOTA_KEY) -> None:
        meta = {"name": name, "namespace": names.QUOTA_NAMESPACE}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {key: text}}
        await self.client.apply(body, "test", resource=ConfigMap.RESOURCE)

    async def events(self, reason: str) -> list[Event]:
        return [event for event in await self.client.list(Event) if event.reason == reason]


@contextlib.asynccontextmanager
async def world(directory: Path) -> AsyncIterator[World]:
    server = await ApiServer.start(directory / "pki")
    server.extensions.identity.add("admin", ADMIN)
    made = World(server, None)  # type: ignore[arg-type]  # set in the next line, by its own method
    try:
        async with made.connect() as client:
            made.client = client
            for definition in crds():
                await client.apply(definition, "test")

            async def served() -> bool:
                await client.list(GPUNode)
                return True

            await until(served, ignored=NotFound, seconds=PATIENCE)
            yield made
    finally:
        await server.stop()


class Running:
    """An extender that leads, behind a port; `leader` is its inside."""

    def __init__(self, leader: Leader, port: int) -> None:
        self.leader = leader
        self.port = port
        self._changed = asyncio.Event()
        for informer in (leader.cluster.pods, leader.cluster.nodes, leader.cluster.gpunodes):
            informer.add_handler(lambda old, new: self._changed.set())

    async def call(self, path: str, args: Any) -> Any:
        """The answer's data to a POST of `args`."""
        answer = await http(self.port, "POST", path, json.dumps(args).encode())
        assert answer.status == 200, (answer.status, answer.body[:500])
        return answer.json

    async def filter(self, pod: Mapping[str, Any], nodes: list[str], verb: str = "/filter") -> Any:
        return await self.call(verb, {"Pod": pod, "NodeNames": nodes, "Nodes": None})

    async def bind(self, pod: Mapping[str, Any], node: str) -> str:
        """The error, "" for success."""
        meta = pod["metadata"]
        args = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        error: str = (await self.call("/bind", args))["Error"]
        return error

    async def until(self, wanted: Callable[[], Any]) -> None:
        """Waits until `wanted()` holds, looking after each change that a watch brings, and now and then."""
        await until(wanted, changed=self._changed, poll=0.1, seconds=PATIENCE)

    async def seen(self, *uids: str) -> None:
        """Until the watch has shown these pods bound."""
        by_uid = self.leader.cluster.by_uid
        await self.until(lambda: all(uid in by_uid and by_uid[uid].spec.node_name for uid in uids))

    def well(self) -> None:
        """The checker's verdict, and nothing under way."""
        found = violations(self.leader.cluster.ledger)
        assert found == [], found


@contextlib.asynccontextmanager
async def account_client(cluster: World, *, pod_scheduler: bool = False) -> AsyncIterator[Client]:
    """A client with the account of the extender's process, by the token "scheduler"; gpuplane is installed before."""
    for manifest in installation(pod_scheduler=pod_scheduler):
        if manifest["kind"] not in ("CustomResourceDefinition", "ClusterPolicy"):
            await cluster.client.apply(manifest, "test", resource=resource_of(manifest))
    groups = ("system:serviceaccounts", "system:serviceaccounts:gpu-operator", "system:authenticated")
    cluster.server.extensions.identity.add("scheduler", User(name=ACCOUNT, groups=groups))
    tls = ssl.create_default_context(cafile=str(cluster.server.authority))
    endpoint = ApiEndpoint(host="127.0.0.1", port=cluster.server.port, auth=StaticAuth(token="scheduler"), tls=tls)
    async with Client(endpoint) as client:
        yield client


@contextlib.asynccontextmanager
async def extender(
    client: Client,
    chosen: Chosen | None = None,
    scheduler_name: str = "",
    moves: MoveLimits = MoveLimits(),  # noqa: B008 - frozen
    namespace: str = "default",
) -> AsyncIterator[Running]:
    clock = SystemClock()
    recorder = EventRecorder(client, "gpuplane-scheduler", clock=clock)
    leader = Leader(
        client, recorder, chosen or Chosen(), clock, time.time_ns, scheduler_name, moves, namespace=namespace
    )
    face = Extender(Forwarder(), lambda: "")
    ready = asyncio.Event()

    def lead() -> None:
        face.leader = leader
        ready.set()

    task = asyncio.create_task(leader.run(lead))
    try:
        async with asyncio.timeout(PATIENCE):
            assert await first_of(ready.wait(), task) == 0
        async with serving(face.paths(), "127.0.0.1", 0, posts=face.posts(), longest_body=LONGEST_BODY) as port:
            yield Running(leader, port)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await recorder.aclose()
