"""The start of every operand, and the report of its stage."""

from gpuplane.operand.context import OperandContext, PluginRegistrar, VectorAdd
from gpuplane.operand.keep import StageOutcome, keep_stage, remove_stage
from gpuplane.operand.report import report_stage, unanswering, write_health

__all__ = [
    "OperandContext",
    "PluginRegistrar",
    "StageOutcome",
    "VectorAdd",
    "keep_stage",
    "remove_stage",
    "report_stage",
    "unanswering",
    "write_health",
]
