"""What every operand is started with, and how it reports its stage."""

from gpuplane.operand.context import Kubelet, OperandContext, VectorAdd
from gpuplane.operand.report import report_stage

__all__ = ["Kubelet", "OperandContext", "VectorAdd", "report_stage"]
