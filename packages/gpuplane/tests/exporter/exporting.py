"""An exporter on fakes of NVML and of the kubelet, as Prometheus and the kubelet's probe see it."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio

from gpuplane.exporter import run
from gpuplane.exporter.operand import METER_SECONDS
from gpuplane.hardware import GPUFacts
from gpuplane.operand import OperandContext
from kubekit.api.core import Pod
from kubekit.api.meta import ObjectMeta
from kubekit.kube import ListPage, NotFound
from kubekit.protocol import podresources_pb2 as pb
from kubekit.protocol.sockets import POD_RESOURCES_SOCKET, address
from tests.support.fake_gpus import FakeGPUs
from tinykube.protocol import podresources_pb2_grpc as rpc

K = TypeVar("K")

T4 = GPUFacts(index=0, minor=0, uuid="GPU-0", model="T4", memory_bytes=1, pci="0000:1a:00.0", compute=(7, 5))


def one_gpu() -> FakeGPUs:
    return FakeGPUs((T4,), "570.1")


async def no_sleep(seconds: float) -> None:
    if seconds == METER_SECONDS:
        await asyncio.Event().wait()  # so that only scrapes read
    await asyncio.sleep(0)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def context(open_gpus: Callable[[], Any], **more: Any) -> OperandContext:
    facts: dict[str, Any] = {
        "node_name": "sim-1",
        "namespace": "gpu-operator",
        "client": PodsOfTheNode(),
        "now": lambda: "",
        "kubelet_dir": Path("/nonexistent"),
        "address": "127.0.0.1",
        "port": free_port(),
        "open_gpus": open_gpus,
        "sleep": no_sleep,
    }
    return OperandContext(**{**facts, **more})


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


class Exporting:
    """Asks a running exporter."""

    def __init__(self, given: OperandContext) -> None:
        self._given = given
        self.task = asyncio.create_task(run(given))

    async def __call__(self, path: str, method: str = "GET", port: int | None = None) -> tuple[int, str]:
        port = port or self._given.port
        assert port is not None
        while True:
            try:
                return await asyncio.to_thread(get, port, path, method)
            except ConnectionRefusedError:
                if self.task.done():
                    raise
                await asyncio.sleep(0.01)

    async def ended(self) -> None:
        """Returns when the exporter has ended, or raises its error."""
        await asyncio.wait_for(asyncio.shield(self.task), 30)


@asynccontextmanager
async def exporting(given: OperandContext) -> AsyncIterator[Exporting]:
    ask = Exporting(given)
    try:
        yield ask
    finally:
        ask.task.cancel()
        await asyncio.gather(ask.task, return_exceptions=True)


class FakePods(rpc.PodResourcesListerServicer):
    def __init__(self, exhausted: int = 0) -> None:
        self.exhausted = exhausted

    async def List(self, request: pb.ListPodResourcesRequest, context: Any) -> pb.ListPodResourcesResponse:
        if self.exhausted:
            self.exhausted -= 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        answer = pb.ListPodResourcesResponse()
        pod = answer.pod_resources.add(name="train", namespace="ml")
        container = pod.containers.add(name="main")
        container.devices.add(resource_name="nvidia.com/gpu", device_ids=["GPU-0", "GPU-1::3"])
        container.devices.add(resource_name="example.com/nic", device_ids=["nic-0"])
        return answer

    async def GetAllocatableResources(
        self, request: pb.AllocatableResourcesRequest, context: Any
    ) -> pb.AllocatableResourcesResponse:
        answer = pb.AllocatableResourcesResponse()
        answer.devices.add(resource_name="nvidia.com/gpu", device_ids=["GPU-0", *(f"GPU-1::{at}" for at in range(8))])
        return answer


@asynccontextmanager
async def pod_resources(kubelet_dir: Path, pods: FakePods) -> AsyncIterator[None]:
    path = kubelet_dir / POD_RESOURCES_SOCKET
    path.parent.mkdir(parents=True)
    server = grpc.aio.server()
    rpc.add_PodResourcesListerServicer_to_server(pods, server)
    with address(path) as target:
        server.add_insecure_port(target)
        await server.start()
        yield
        await server.stop(None)


class PodsOfTheNode(FakePods):
    """A client that lists and watches the pods of one node."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def pages(self, kind: type, namespace: Any, labels: str, fields: str, *, bad: Any) -> AsyncIterator[ListPage]:
        assert kind is Pod
        self.asked.append(fields)
        labelled = {"app.kubernetes.io/name": "train", "team": "vision", "pod": "x", "gpu": "x", "0rder": "1"}
        pods = [
            Pod(metadata=ObjectMeta(name="train", namespace="ml", uid="u1", labels=labelled)),
            Pod(metadata=ObjectMeta(name="other", namespace="ml", uid="u2")),
        ]
        yield ListPage(pods, "1", "")

    async def get(self, kind: type[K], name: str, namespace: str) -> K:
        raise NotFound(f"{kind.__name__} {namespace}/{name} not found")

    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield
