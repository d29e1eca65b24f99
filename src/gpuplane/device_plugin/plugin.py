"""The `nvidia.com/gpu` plugin itself: the current devices, and the answers to what a kubelet asks.

Invariant: who watches sees every state that lasts, in order; states that come and go faster than they are taken are
merged into the last one. All of it runs in one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from gpuplane import names
from gpuplane.device_plugin import decide
from gpuplane.device_plugin.config import PluginConfig
from gpuplane.device_plugin.facts import Allocation, Device
from gpuplane.device_plugin.preference import Chooser, closeness
from gpuplane.hardware import GPU


class GPUPlugin:
    """Whole GPUs; see `gpuplane.device_plugin.facts.Plugin` for what the methods promise."""

    def __init__(self, inventory: Sequence[GPU], health: Mapping[str, str], config: PluginConfig) -> None:
        self._inventory = tuple(inventory)
        self._health = dict(health)
        self._config = config
        self._chooser = Chooser([gpu.uuid for gpu in inventory], closeness(inventory))
        self._devices = decide.devices(inventory, health)
        self._changed = asyncio.Event()
        self.offered = asyncio.Event()  # set once a kubelet has taken the devices

    @property
    def resource(self) -> str:
        return names.GPU_RESOURCE

    @property
    def health(self) -> Mapping[str, str]:
        """UUID -> why it is not usable."""
        return self._health

    @property
    def has_unusable(self) -> bool:
        return any(not device.healthy for device in self._devices)

    def set_health(self, health: Mapping[str, str]) -> bool:
        """Take over a new health; False when it is the old one. Watchers are told only if a device changed."""
        if health == self._health:
            return False
        self._health = dict(health)
        devices = decide.devices(self._inventory, health)
        if devices != self._devices:
            self._devices = devices
            self._changed.set()
            self._changed = asyncio.Event()
        return True

    def watch(self) -> AsyncIterator[tuple[Device, ...]]:
        self.offered.set()
        return self.states()

    async def states(self) -> AsyncIterator[tuple[Device, ...]]:
        """What `watch` gives, for those who are no kubelet."""
        while True:
            changed = self._changed
            yield self._devices
            await changed.wait()

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        return self._chooser.choose(available, must_include, size)

    def allocate(self, ids: Sequence[str]) -> Allocation:
        return decide.allocation(ids, self._inventory, self._health, self._config)
