"""The messages between a plugin and a kubelet, as plain data, without gRPC.

`GrpcKubelet` carries it over the kubelet's sockets; the kubelet of a light node calls the same object in its own
process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from gpuplane.host import HostMount


class PluginDevice(msgspec.Struct, frozen=True):
    """One unit of the resource. `id` has at most 63 characters; `numa` lists the NUMA nodes near it, none if
    unknown."""

    id: str
    healthy: bool
    numa: tuple[int, ...] = ()


class DeviceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A device node of the host in a container, to read and write."""

    host_path: str
    container_path: str


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """The response for a container: environment, mounts, device nodes, annotations, fully qualified CDI
    device names.
    """

    envs: dict[str, str] = {}
    mounts: tuple[HostMount, ...] = ()
    devices: tuple[DeviceSpec, ...] = ()
    annotations: dict[str, str] = {}
    cdi_devices: tuple[str, ...] = ()


class ResourcePlugin(Protocol):
    """A resource that is offered to a kubelet.

    The kubelet of a light node uses it as a real one uses the sockets: it takes the devices from `watch`, asks
    `preferred` where it has a choice, and calls `allocate` once for each container. Neither of the two waits for
    anything. A real kubelet asks `steered`, which may look up whose request it is, and tells `started`.
    """

    starts: bool
    """Whether the kubelet shall call `started` before each start of a container."""

    @property
    def resource(self) -> str: ...

    def watch(self) -> AsyncIterator[tuple[PluginDevice, ...]]:
        """All devices now, and again all of them after each change; never ends by itself."""
        ...

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        """`size` ids of `available`, `must_include` among them. Raises InvalidInput when that is not possible."""
        ...

    async def steered(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        """The same, for the pod that the kubelet admits just now."""
        ...

    def allocate(self, ids: Sequence[str]) -> Allocation:
        """Return the response for one container with these devices. Raises Terminal for ids that are unknown or not
        healthy.
        """
        ...

    async def started(self, ids: Sequence[str]) -> None:
        """Called when the container of these devices is about to start. An exception keeps it from starting."""
        ...
