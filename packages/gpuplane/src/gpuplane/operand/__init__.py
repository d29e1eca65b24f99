"""The start of every operand, and the report of its stage."""

from gpuplane.operand.context import Kubelet, OperandContext, VectorAdd
from gpuplane.operand.keep import Outcome, keep_stage, remove_stage
from gpuplane.operand.report import report_stage

__all__ = [
    "Kubelet",
    "OperandContext",
    "Outcome",
    "VectorAdd",
    "keep_stage",
    "remove_stage",
    "report_stage",
]
