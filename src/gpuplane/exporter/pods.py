"""Which container holds which GPU, asked of the kubelet's pod-resources socket at each scrape (2 ms).

Invariant: metrics never wait for pods or fail because of them; without an answer they have no pod labels, and the log
says so once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuplane import names
from gpuplane.exporter.render import Holder

if TYPE_CHECKING:
    from gpuplane.api.protocol.podresources_pb2 import ListPodResourcesResponse

log = logging.getLogger("gpuplane.exporter")

TIMEOUT_SECONDS: Final = 2.0
# The kubelet answers RESOURCE_EXHAUSTED above 100 calls a second.
PAUSES_SECONDS: Final = (0.05, 0.1, 0.2)
REPLICA_MARK: Final = "::"
LARGEST_ANSWER: Final = 64 << 20  # bytes; gRPC's default of 4 MiB is less than 250 busy pods can need


def holders(answer: ListPodResourcesResponse) -> dict[str, list[Holder]]:
    """GPU UUID -> its containers, from the kubelet's answer. Ids of other resources do no harm: they are no UUIDs."""
    found: dict[str, list[Holder]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            holder = Holder(namespace=pod.namespace, pod=pod.name, container=container.name)
            for devices in container.devices:
                if not devices.resource_name.startswith("nvidia.com/"):
                    continue
                for device in devices.device_ids:
                    known = found.setdefault(device.partition(REPLICA_MARK)[0], [])
                    if holder not in known:
                        known.append(holder)
    return found


class PodResources:
    """The kubelet whose directory is `kubelet_dir`."""

    def __init__(self, kubelet_dir: Path, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._socket = kubelet_dir / names.POD_RESOURCES_SOCKET
        self._sleep = sleep
        self._said = ""

    async def holders(self) -> dict[str, list[Holder]]:
        """As `holders`; empty when the kubelet does not answer."""
        if not self._socket.exists():
            self._say(
                f"no pod labels: there is no {self._socket}; mount the kubelet's directory, or give --kubelet-dir"
            )
            return {}
        # Late: gRPC is 20 MB, needed only where there is a kubelet to ask.
        import grpc

        try:
            answer = await self._list()
        except grpc.aio.AioRpcError as error:
            self._say(f"no pod labels: the kubelet answers {error.code().name} {error.details()}".rstrip())
            return {}
        self._say("")
        return holders(answer)

    async def _list(self) -> ListPodResourcesResponse:
        import grpc
        import grpc.aio

        from gpuplane.api.protocol.podresources_pb2 import ListPodResourcesRequest, ListPodResourcesResponse
        from gpuplane.api.protocol.podresources_pb2_grpc import PodResourcesListerStub
        from gpuplane.api.protocol.sockets import address

        options = [("grpc.max_receive_message_length", LARGEST_ANSWER)]
        with address(self._socket) as target:
            async with grpc.aio.insecure_channel(target, options) as channel:
                stub = PodResourcesListerStub(channel)
                for pause in (*PAUSES_SECONDS, None):
                    try:
                        answer = await stub.List(ListPodResourcesRequest(), timeout=TIMEOUT_SECONDS)
                        assert isinstance(answer, ListPodResourcesResponse)
                        return answer
                    except grpc.aio.AioRpcError as error:
                        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or pause is None:
                            raise
                    await self._sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _say(self, text: str) -> None:
        if text != self._said:
            if text:
                log.warning(text)
            else:
                log.info("pod labels are there again")
            self._said = text
