"""MPS control daemons of a node: what `sharing.mps` of the device plugin's configuration needs to run."""

from gpuplane.mps.operand import run

__all__ = ["run"]
