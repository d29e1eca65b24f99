"""Device plugin: advertises the node's GPUs to the kubelet as `nvidia.com/gpu` and hands them to containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplane.device_plugin.kubelet_api import Allocation, PluginDevice, ResourcePlugin

if TYPE_CHECKING:
    from gpuplane.operand import OperandContext

__all__ = ["Allocation", "PluginDevice", "ResourcePlugin", "run", "uninstall"]


async def run(context: OperandContext) -> None:
    """The operand; see `gpuplane.device_plugin.operand`."""
    from gpuplane.device_plugin.operand import run as run_operand

    await run_operand(context)


async def uninstall(context: OperandContext) -> None:
    """Its end for good; see `gpuplane.device_plugin.removal`."""
    from gpuplane.device_plugin.removal import uninstall as take_away

    await take_away(context)
