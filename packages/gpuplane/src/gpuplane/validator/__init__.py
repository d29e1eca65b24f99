"""Validator: proves on the node itself that a GPU program works, and that a pod can get a GPU."""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers read it; typing is most of what the vectorAdd would import
if TYPE_CHECKING:
    from gpuplane.operand import OperandContext

__all__ = ["run"]


async def run(context: OperandContext) -> None:
    """The operand; see `gpuplane.validator.operand`.

    NB: imported on use, because `python -m gpuplane.validator.vectoradd`, which starts once for each GPU and pod,
    imports this package first.
    """
    from gpuplane.validator.operand import run as run_operand

    await run_operand(context)
