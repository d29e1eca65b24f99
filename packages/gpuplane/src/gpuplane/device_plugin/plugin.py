"""One resource of one node as a plugin: its current devices, and the answers to what a kubelet asks.

Invariant: who watches sees every state that lasts, in order; states that come and go faster than they are taken are
merged into the last one. All of it runs in one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from gpuplane.api.pluginconfig import PluginConfig
from gpuplane.device_plugin.allocation import NodeFiles, UnitChooser, allocation
from gpuplane.device_plugin.kubelet_api import Allocation, PluginDevice, ResourcePlugin
from gpuplane.device_plugin.nri import DeferredAllocation, deferred
from gpuplane.hardware import GPUFacts
from gpuplane.sharing.units import Unit

if TYPE_CHECKING:
    from gpuplane.device_plugin.nri.connection import NriConnection
    from gpuplane.device_plugin.shares import Steering


class DeviceList:
    """The devices of one resource, and who waits for them to change."""

    def __init__(self, devices: tuple[PluginDevice, ...]) -> None:
        self.now = devices
        self.offered = asyncio.Event()  # set once a kubelet has taken them
        self._changed = asyncio.Event()

    def set(self, devices: tuple[PluginDevice, ...]) -> None:
        if devices != self.now:
            self.now = devices
            self._changed.set()
            self._changed = asyncio.Event()

    def watch(self) -> AsyncIterator[tuple[PluginDevice, ...]]:
        self.offered.set()
        return self._states()

    async def _states(self) -> AsyncIterator[tuple[PluginDevice, ...]]:
        while True:
            changed = self._changed
            yield self.now
            await changed.wait()


class HealthAwarePlugin(ResourcePlugin, Protocol):
    """A plugin that follows the health of the node's GPUs."""

    devices: DeviceList

    def set_health(self, health: Mapping[str, str]) -> None: ...


class UnitPlugin:
    """Units of GPUs under one name; `ResourcePlugin` documents the methods.

    With `link` the runtime asks what a container gets when it creates it.
    """

    def __init__(
        self,
        resource: str,
        units: Sequence[Unit],
        inventory: Sequence[GPUFacts],
        config: PluginConfig,
        files: NodeFiles = NodeFiles(),  # noqa: B008 - frozen
        steering: Steering | None = None,
        link: NriConnection | None = None,
    ) -> None:
        self._resource = resource
        self._link = link
        self.starts = link is not None
        self._steering = steering
        self._units = {unit.id: unit for unit in units}
        self._config = config
        self._files = files
        self._choice = UnitChooser(units, inventory)
        self._health: Mapping[str, str] = {}
        self.devices = DeviceList(self._listed())

    @property
    def resource(self) -> str:
        return self._resource

    def set_health(self, health: Mapping[str, str]) -> None:
        """UUID of a GPU -> why it is not usable: all that is of it is unhealthy with it, and is well with it again."""
        self._health = dict(health)
        self.devices.set(self._listed())

    def _listed(self) -> tuple[PluginDevice, ...]:
        return tuple(
            PluginDevice(id=unit.id, healthy=unit.gpu not in self._health, numa=(unit.numa,) if unit.numa >= 0 else ())
            for unit in self._units.values()
        )

    def watch(self) -> AsyncIterator[tuple[PluginDevice, ...]]:
        return self.devices.watch()

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        return self._choice.choose(available, must_include, size)

    async def steered(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        """With shares on the same GPUs (`steering`) those of the pod's assignment; else as `preferred`."""
        found = None
        if self._steering is not None:
            found = await self._steering.choose(self._resource, available, must_include, size)
        return self.preferred(available, must_include, size) if found is None else found

    def allocate(self, ids: Sequence[str]) -> Allocation:
        given = allocation(ids, self._units, self._health, self._config, self._files, self._resource)
        if self._link is None:
            return given
        return deferred(self._resource, DeferredAllocation(allocation=given))

    async def started(self, ids: Sequence[str]) -> None:
        """Confirm that these containers may start; their rights were decided at Allocate, only NRI may have to wait."""
        if self._link is not None:
            await self._link.asked()


class NodePlugins:
    """All resources of the node, and the health of its GPUs, which reaches every one of them.

    `listed` has the UUIDs of the GPUs that NVML lists.
    """

    def __init__(self, plugins: Iterable[HealthAwarePlugin], health: Mapping[str, str], uuids: Iterable[str]) -> None:
        self.plugins = tuple(plugins)
        self.listed = frozenset(uuids)
        self._health: dict[str, str] = {}
        self._changed = asyncio.Event()
        self.set_health(health)

    @property
    def health(self) -> Mapping[str, str]:
        """UUID -> why it is not usable."""
        return self._health

    def set_health(self, health: Mapping[str, str]) -> bool:
        """Take over a new health; False when it is the old one."""
        if health == self._health:
            return False
        self._health = dict(health)
        for plugin in self.plugins:
            plugin.set_health(health)
        self._changed.set()
        return True

    async def until_unusable(self) -> None:
        """Until a GPU that is there cannot be used."""
        while not self.listed & set(self._health):
            self._changed.clear()
            await self._changed.wait()

    async def offered(self) -> None:
        """Until a kubelet has taken the devices of every resource."""
        for plugin in self.plugins:
            await plugin.devices.offered.wait()
