"""Reads GPU feature discovery's part of the device plugin's configuration: sharing, MIG strategy, its own flags.

Both programs choose and read the same files alike (`gpuplane.operand.configs`,
`gpuplane.api.pluginconfig`): a configuration that the plugin cannot follow changes no label either.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gpuplane.api.pluginconfig import DEFAULT_INTERVAL, MACHINE_FILE, MigStrategy, PluginConfig, SharingStrategy
from gpuplane.api.pluginconfig import load as load_plugin_config
from gpuplane.operand.configs import NodeConfiguration

__all__ = ["GpuConfig", "MigStrategy", "SharedResource", "SharingStrategy", "gpu_config", "load"]


class SharedResource(msgspec.Struct, frozen=True):
    """A resource of which each device is offered `replicas` times, under another name when `renamed`."""

    replicas: int
    renamed: bool = False


class GpuConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of the labels besides the hardware. `shared` is by the resource's full name; `interval` in seconds."""

    mig_strategy: MigStrategy = MigStrategy.NONE
    strategy: SharingStrategy = SharingStrategy.NONE
    shared: Mapping[str, SharedResource] = {}
    timestamp: bool = True
    machine_file: str = MACHINE_FILE
    interval: float = DEFAULT_INTERVAL

    def replicas(self, resource: str) -> int:
        return self.shared[resource].replicas if resource in self.shared else 1

    def renamed(self, resource: str) -> bool:
        return resource in self.shared and self.shared[resource].renamed


def load(chosen: NodeConfiguration, environment: Mapping[str, str]) -> GpuConfig:
    """The configuration of a node, the environment before it. Raises InvalidInput."""
    return gpu_config(load_plugin_config(chosen.text or b"", environment, where=chosen.where))


def gpu_config(config: PluginConfig) -> GpuConfig:
    """The part of a configuration that labels depend on."""
    return GpuConfig(
        mig_strategy=config.mig_strategy,
        strategy=config.sharing,
        shared={one.resource: SharedResource(one.replicas, one.renamed) for one in config.replicated},
        timestamp=config.gfd_timestamp,
        machine_file=config.gfd_machine_file,
        interval=config.gfd_interval,
    )
