"""Exporter: the node's GPUs as Prometheus metrics, under the names that DCGM dashboards know."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuplane.operand import OperandContext

__all__ = ["run"]


async def run(context: OperandContext) -> None:
    """The operand; see `gpuplane.exporter.operand`."""
    from gpuplane.exporter.operand import run as run_operand

    await run_operand(context)
