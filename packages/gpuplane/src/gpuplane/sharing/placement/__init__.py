"""Placement on GPUs: whether a pod fits a node (`place`), and the policies that order nodes and GPUs, one module
each.
"""

from gpuplane.sharing.placement.fit import place
from gpuplane.sharing.placement.policy import REASONS, Lack, Placement, Policy, Refusal
from gpuplane.sharing.placement.tightest import node_order

__all__ = ["REASONS", "Lack", "Placement", "Policy", "Refusal", "node_order", "place"]
