"""Policies by their names, as configurations and annotations give them."""

from __future__ import annotations

from collections.abc import Iterable

from gpuplane.sharing.findings import POLICIES
from gpuplane.sharing.node import LedgerGPU
from gpuplane.sharing.placement.fragmentation import FragmentationPolicy
from gpuplane.sharing.placement.mix import Mix
from gpuplane.sharing.placement.opportunity import learn
from gpuplane.sharing.placement.policy import Policy
from gpuplane.sharing.placement.spread import SpreadPolicy
from gpuplane.sharing.placement.tightest import TightestPolicy
from gpuplane.sharing.placement.topology import TopologyPolicy
from kubekit.errors import UsageError


def policy_named(name: str, mix: Mix, gpus: Iterable[tuple[LedgerGPU, ...]], scale: int = 100) -> Policy:
    """Return the policy with the name, for the mix of requests and the nodes' GPUs. Raises UsageError for a wrong
    name.
    """
    match name:
        case "opportunity":
            return learn(mix, gpus, scale)
        case "fragmentation":
            return FragmentationPolicy(mix)
        case "tightest":
            return TightestPolicy()
        case "spread":
            return SpreadPolicy()
        case "topology":
            return TopologyPolicy()
    raise UsageError(f"{name!r} is no placement policy", cure=f"one of {', '.join(POLICIES)}")
