"""Device plugin: advertises the node's GPUs to the kubelet as `nvidia.com/gpu` and hands them to containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplane.device_plugin.facts import Allocation, Device, Plugin

if TYPE_CHECKING:
    from gpuplane.operand import OperandContext

__all__ = ["Allocation", "Device", "Plugin", "run", "uninstall"]


async def run(context: OperandContext) -> None:
    """The operand; see `gpuplane.device_plugin.operand`."""
    from gpuplane.device_plugin.operand import run as run_operand

    await run_operand(context)


async def uninstall(context: OperandContext) -> None:
    """Its end for good; see `gpuplane.device_plugin.removal`."""
    from gpuplane.device_plugin.removal import uninstall as take_away

    await take_away(context)
