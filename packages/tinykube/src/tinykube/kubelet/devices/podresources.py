"""pod-resources v1: which pod holds which devices, for exporters and schedulers on the node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from kubekit.protocol import podresources_pb2 as pb
from kubekit.protocol.sockets import POD_RESOURCES_SOCKET, address
from tinykube.kubelet.claims import ClaimManager
from tinykube.kubelet.devices.ledger import ListedDevice
from tinykube.kubelet.devices.manager import DeviceManager
from tinykube.kubelet.pod import KubeletPod, all_containers
from tinykube.protocol import podresources_pb2_grpc as rpc

CALLS_PER_SECOND: Final = 100.0
BURST: Final = 10


class PodResourcesServer(rpc.PodResourcesListerServicer):
    """Answers from the managers of devices and claims; `pods` gives the node's pods.

    More than 100 calls a second are refused.
    """

    def __init__(self, manager: DeviceManager, claims: ClaimManager, pods: Callable[[], Iterable[KubeletPod]]) -> None:
        self._manager = manager
        self._claims = claims
        self._pods = pods
        self._server: Any = None
        self._tokens = float(BURST)
        self._at = manager.clock.time()

    async def start(self, kubelet_dir: Path) -> None:
        self._socket = kubelet_dir / POD_RESOURCES_SOCKET
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        rpc.add_PodResourcesListerServicer_to_server(self, self._server)
        with address(self._socket) as target:
            self._server.add_insecure_port(target)
            await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._socket.unlink(missing_ok=True)

    async def _limit(self, context: Any) -> None:
        now = self._manager.clock.time()
        self._tokens = min(float(BURST), self._tokens + (now - self._at) * CALLS_PER_SECOND)
        self._at = now
        if self._tokens < 1.0:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self._tokens -= 1.0

    def _resources(self, pod: KubeletPod) -> pb.PodResources:
        message = pb.PodResources(name=pod.metadata.name, namespace=pod.metadata.namespace)
        for container in all_containers(pod):
            if container in pod.spec.init_containers and not container.sidecar:
                continue  # a kubelet lists what can run now: main containers and sidecars
            row = message.containers.add(name=container.name)
            for holding in self._manager.ledger.of(pod.metadata.uid, container.name):
                known = self._manager.devices.get(holding.resource, {})
                for numa, ids in sorted(_by_numa(holding.ids, known).items()):
                    _add(row.devices, holding.resource, numa, ids)
            self._claims.describe(pod, container, row.dynamic_resources)
        return message

    async def List(self, request: pb.ListPodResourcesRequest, context: Any) -> pb.ListPodResourcesResponse:
        await self._limit(context)
        return pb.ListPodResourcesResponse(pod_resources=[self._resources(pod) for pod in self._pods()])

    async def Get(self, request: pb.GetPodResourcesRequest, context: Any) -> pb.GetPodResourcesResponse:
        await self._limit(context)
        for pod in self._pods():
            if (pod.metadata.name, pod.metadata.namespace) == (request.pod_name, request.pod_namespace):
                return pb.GetPodResourcesResponse(pod_resources=self._resources(pod))
        await context.abort(
            grpc.StatusCode.NOT_FOUND, f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        )
        raise AssertionError("abort does not return")

    async def GetAllocatableResources(
        self, request: pb.AllocatableResourcesRequest, context: Any
    ) -> pb.AllocatableResourcesResponse:
        await self._limit(context)
        message = pb.AllocatableResourcesResponse()
        for resource, known in self._manager.devices.items():
            healthy = [i for i, device in known.items() if device.healthy]
            for numa, ids in sorted(_by_numa(healthy, known).items()):
                _add(message.devices, resource, numa, ids)
        return message


def _by_numa(ids: Iterable[str], known: dict[str, ListedDevice]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for i in ids:
        numa = known[i].numa if i in known else ()
        found.setdefault(numa[0] if numa else -1, []).append(i)
    return found


def _add(rows: Any, resource: str, numa: int, ids: list[str]) -> None:
    row = rows.add(resource_name=resource, device_ids=ids)
    if numa >= 0:
        row.topology.nodes.add(ID=numa)
