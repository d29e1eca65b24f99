"""Policies by their names, as configurations and annotations give them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial

from gpuplane.sharing.findings import POLICIES
from gpuplane.sharing.node import LedgerGPU
from gpuplane.sharing.placement.fragmentation import FragmentationPolicy
from gpuplane.sharing.placement.mix import Mix
from gpuplane.sharing.placement.opportunity import learning
from gpuplane.sharing.placement.policy import Policy
from gpuplane.sharing.placement.power import PowerPolicy, average_rise
from gpuplane.sharing.placement.spread import SpreadPolicy
from gpuplane.sharing.placement.steps import finish
from gpuplane.sharing.placement.tightest import TightestPolicy
from gpuplane.sharing.placement.topology import TopologyPolicy
from kubekit.errors import UsageError


def policy_named(name: str, mix: Mix, gpus: Sequence[tuple[LedgerGPU, ...]], scale: int = 100) -> Policy:
    """Return the policy with the name, for the mix of requests and the nodes' GPUs. Raises UsageError for a wrong
    name.
    """
    return finish(building(name, mix, gpus, scale))


def building(
    name: str, mix: Mix, gpus: Sequence[tuple[LedgerGPU, ...]], scale: int = 100
) -> Generator[None, None, Policy]:
    """Build the policy with the name in steps of about a millisecond; the generator's value is the policy."""
    match name:
        case "opportunity":
            return (yield from learning(mix, gpus, scale))
        case "power":
            return (yield from learning(mix, gpus, scale, partial(PowerPolicy, average_rise=average_rise(gpus))))
        case "fragmentation":
            return FragmentationPolicy(mix)
        case "tightest":
            return TightestPolicy()
        case "spread":
            return SpreadPolicy()
        case "topology":
            return TopologyPolicy()
    raise UsageError(f"{name!r} is no placement policy", cure=f"one of {', '.join(POLICIES)}")
