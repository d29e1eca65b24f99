"""List the pods of a node with their devices, from the kubelet's pod-resources socket.

The kubelet answers RESOURCE_EXHAUSTED above 100 calls a second, for all callers together; the call is repeated then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from kubekit.protocol.sockets import POD_RESOURCES_SOCKET
from kubekit.rpc import RpcError, Status, call

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from kubekit.protocol.podresources_pb2 import AllocatableResourcesResponse, ListPodResourcesResponse

M = TypeVar("M", bound="Message")

_LIST: Final = "/v1.PodResourcesLister/List"
_ALLOCATABLE: Final = "/v1.PodResourcesLister/GetAllocatableResources"
_TIMEOUT_SECONDS: Final = 2.0
_PAUSES_SECONDS: Final = (0.02, 0.05, 0.1, 0.2, 0.4)


class PodResourcesClient:
    """The pod-resources API of the kubelet whose directory is `kubelet_dir`."""

    def __init__(self, kubelet_dir: Path, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.socket = kubelet_dir / POD_RESOURCES_SOCKET
        self._sleep = sleep

    async def list(self) -> ListPodResourcesResponse:
        """Return the kubelet's answer. Raises RpcError, INTERNAL for an answer that is not protobuf."""
        # Late: 7 MB, needed only where there is a kubelet to ask.
        from kubekit.protocol.podresources_pb2 import ListPodResourcesResponse

        return self._parsed(ListPodResourcesResponse, await self._call(_LIST))

    async def allocatable(self) -> AllocatableResourcesResponse:
        """Return all devices that the kubelet can allocate. Raises as `list` does."""
        from kubekit.protocol.podresources_pb2 import AllocatableResourcesResponse

        return self._parsed(AllocatableResourcesResponse, await self._call(_ALLOCATABLE))

    def _parsed(self, kind: type[M], answer: bytes) -> M:
        from google.protobuf.message import DecodeError

        try:
            return kind.FromString(answer)
        except DecodeError as error:
            raise RpcError(
                Status.INTERNAL, f"and its answer cannot be read: {error}", where=str(self.socket)
            ) from error

    async def _call(self, method: str) -> bytes:
        for pause in _PAUSES_SECONDS:
            try:
                return await call(self.socket, method, b"", timeout=_TIMEOUT_SECONDS)
            except RpcError as error:
                if error.status is not Status.RESOURCE_EXHAUSTED:
                    raise
            await self._sleep(pause)
        return await call(self.socket, method, b"", timeout=_TIMEOUT_SECONDS)
