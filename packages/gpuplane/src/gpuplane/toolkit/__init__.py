"""Container runtime and CDI: what lets containers have GPUs. `run` and `uninstall` are the operand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplane.toolkit.applying import apply, diff
from gpuplane.toolkit.by_hand import ToolkitReport, cdi, configure, unconfigure
from gpuplane.toolkit.facts import DriverFiles, ToolkitError, ToolkitFacts
from gpuplane.toolkit.observing import observe
from gpuplane.toolkit.places import RuntimeName, RuntimePaths
from gpuplane.toolkit.planning import ToolkitPlan, plan

if TYPE_CHECKING:
    from gpuplane.operand import OperandContext

__all__ = [
    "DriverFiles",
    "RuntimeName",
    "RuntimePaths",
    "ToolkitError",
    "ToolkitFacts",
    "ToolkitPlan",
    "ToolkitReport",
    "apply",
    "cdi",
    "configure",
    "diff",
    "observe",
    "plan",
    "run",
    "unconfigure",
    "uninstall",
]


# NB: the operand is imported late. A command by hand needs no cluster, whose client takes longer than all it does.


async def run(context: OperandContext) -> None:
    """See `gpuplane.toolkit.operand`."""
    from gpuplane.toolkit import operand

    await operand.run(context)


async def uninstall(context: OperandContext) -> None:
    """See `gpuplane.toolkit.operand`."""
    from gpuplane.toolkit import operand

    await operand.uninstall(context)
