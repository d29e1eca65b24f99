"""Container runtime and CDI: what lets containers have GPUs. `run` and `uninstall` are the operand."""

from gpuplane.toolkit.applying import apply, diff
from gpuplane.toolkit.by_hand import Report, cdi, configure, unconfigure
from gpuplane.toolkit.facts import Driver, Facts, ToolkitError
from gpuplane.toolkit.observing import observe
from gpuplane.toolkit.operand import run, uninstall
from gpuplane.toolkit.places import Place, RuntimeName
from gpuplane.toolkit.planning import Plan, plan

__all__ = [
    "Driver",
    "Facts",
    "Place",
    "Plan",
    "Report",
    "RuntimeName",
    "ToolkitError",
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
