"""`tencent.com/vcuda-core` and `-memory` as plugins: ids on the GPU that was assigned, limits when a container starts.

The core resource brings the GPU, the libraries and the pages into a container; the memory resource is counted with it
and adds nothing. Two plugins share one `Steering`, since the kubelet asks for a pod's resources in any order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from gpuplane import names
from gpuplane.api.pluginconfig import PluginConfig
from gpuplane.device_plugin.allocation import NodeFiles, allocation
from gpuplane.device_plugin.kubelet_api import Allocation, PluginDevice
from gpuplane.device_plugin.nri import DeferredAllocation, deferred
from gpuplane.device_plugin.plugin import DeviceList
from gpuplane.device_plugin.shares.ids import core_of, devices, gpu_of, share_name
from gpuplane.device_plugin.shares.limits import ShareLimits
from gpuplane.device_plugin.shares.packing import packed_by_ids
from gpuplane.device_plugin.shares.steering import Steering
from gpuplane.hardware import GPUFacts
from gpuplane.sharing import WHOLE
from gpuplane.sharing.units import Unit, resources
from kubekit.errors import Retryable, Terminal

if TYPE_CHECKING:
    from gpuplane.device_plugin.nri.connection import NriConnection


class SharePlugin:
    """One of the two resources; `ResourcePlugin` documents the methods.

    `steering` and `limits` are None on a light node, which runs no containers. With `link` the runtime asks what a
    container gets when it creates it, which names the container; without, its start does.
    """

    def __init__(
        self,
        resource: str,
        gpus: Sequence[GPUFacts],
        config: PluginConfig,
        steering: Steering | None,
        limits: ShareLimits | None,
        files: NodeFiles = NodeFiles(),  # noqa: B008 - frozen
        link: NriConnection | None = None,
    ) -> None:
        self._resource = resource
        self._link = link
        self._held_back: set[str] = set()
        self._gpus = tuple(gpus)
        self._config = config
        self._steering = steering
        self._limits = limits
        self._files = files
        self._units = _units(gpus)
        self._health: Mapping[str, str] = {}
        self.starts = resource == names.VCUDA_CORE and limits is not None
        self.devices = DeviceList(devices(gpus, resource, {}))

    @property
    def resource(self) -> str:
        return self._resource

    def set_health(self, health: Mapping[str, str]) -> None:
        self._health = dict(health)
        if self._steering is not None:
            self._steering.set_health(health)
        self.devices.set(devices(self._gpus, self._resource, health))

    def watch(self) -> AsyncIterator[tuple[PluginDevice, ...]]:
        return self.devices.watch()

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        return packed_by_ids(self._gpus, self._resource, available, must_include, size)

    async def steered(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        found = None
        if self._steering is not None:
            found = await self._steering.choose(self._resource, available, must_include, size)
        return self.preferred(available, must_include, size) if found is None else found

    def allocate(self, ids: Sequence[str]) -> Allocation:
        strangers = [id_ for id_ in ids if gpu_of(id_) not in self._units]
        if strangers:
            raise Terminal(f"no device {strangers[0]} on this node", where="Allocate")
        if self._resource == names.VCUDA_MEMORY:
            return Allocation()
        core = core_of(ids)
        given = allocation(list(core), self._units, self._health, self._config, self._files)
        if self._limits is None:
            return given
        mounts, envs = self._limits.given(ids)
        given = msgspec.structs.replace(given, mounts=(*given.mounts, *mounts), envs={**given.envs, **envs})
        if self._link is None:
            return given
        self._held_back.add(share_name(ids))
        if WHOLE in core.values():
            return deferred(self._resource, DeferredAllocation(allocation=given))
        return deferred(self._resource, DeferredAllocation(allocation=given, share=share_name(ids), core=core))

    async def started(self, ids: Sequence[str]) -> None:
        if self._link is not None:
            await self._link.asked()
        if self._steering is None or self._limits is None or WHOLE in core_of(ids).values():
            return
        share = share_name(ids)
        if share in self._held_back:
            return  # its limits are written when it is created
        try:
            holder, part = await self._steering.holder(self._resource, ids)
        except Retryable:
            if self._link is None:
                raise
            return  # a deferred response of an earlier plugin is recognised when the container is created
        await asyncio.to_thread(self._limits.write, share, holder, part)


def share_plugins(
    gpus: Sequence[GPUFacts],
    config: PluginConfig,
    steering: Steering | None,
    limits: ShareLimits | None,
    files: NodeFiles,
    link: NriConnection | None = None,
) -> list[SharePlugin]:
    """Both resources of a node."""
    return [
        SharePlugin(resource, gpus, config, steering, limits, files, link)
        for resource in (names.VCUDA_CORE, names.VCUDA_MEMORY)
    ]


def _units(gpus: Sequence[GPUFacts]) -> dict[str, Unit]:
    """The GPUs as whole units, for what a container needs to reach one."""
    return {unit.id: unit for units in resources(gpus, PluginConfig()).values() for unit in units}
