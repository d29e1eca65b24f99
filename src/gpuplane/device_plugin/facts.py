"""What a plugin and a kubelet say to each other, as plain data, without gRPC.

`GrpcKubelet` carries it over the kubelet's sockets; the kubelet of a light node calls the same object in its own
process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec


class Device(msgspec.Struct, frozen=True):
    """One unit of the resource. `id` has at most 63 characters; `numa` lists the NUMA nodes near it, none if
    unknown."""

    id: str
    healthy: bool
    numa: tuple[int, ...] = ()


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """What a container gets: environment, annotations, fully qualified CDI device names."""

    envs: dict[str, str] = {}
    annotations: dict[str, str] = {}
    cdi_devices: tuple[str, ...] = ()


class Plugin(Protocol):
    """A resource that is offered to a kubelet.

    The kubelet of a light node uses it as a real one uses the sockets: it takes the devices from `watch`, asks
    `preferred` where it has a choice, and calls `allocate` once for each container. No call blocks.
    """

    @property
    def resource(self) -> str: ...

    def watch(self) -> AsyncIterator[tuple[Device, ...]]:
        """All devices now, and again all of them after each change; never ends by itself."""
        ...

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        """`size` ids of `available`, `must_include` among them. Raises InvalidInput when that is not possible."""
        ...

    def allocate(self, ids: Sequence[str]) -> Allocation:
        """What one container with these devices gets. Raises Terminal for ids that are unknown or not healthy."""
        ...
