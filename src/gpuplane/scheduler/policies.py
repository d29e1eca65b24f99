"""Which placement policy a pod gets: what it asks by annotation, else what the extender was started with."""

from __future__ import annotations

from typing import Final

import msgspec

from gpuplane.errors import Usage
from gpuplane.sharing import POLICIES, Request
from gpuplane.sharing.placement import Policy
from gpuplane.sharing.placement.spread import Spread
from gpuplane.sharing.placement.tightest import Tightest
from gpuplane.sharing.placement.topology import Topology

_MADE: Final[dict[str, Policy]] = {policy.name: policy for policy in (Tightest(), Spread(), Topology())}


class Policies(msgspec.Struct, frozen=True):
    """The names of the policies by which nodes, and GPUs of a node, are chosen for pods that say nothing."""

    node: str = "tightest"
    gpu: str = ""

    def of(self, request: Request) -> tuple[Policy, Policy]:
        """The policy for nodes and the one for GPUs; the latter is the former's unless somebody says otherwise."""
        node = _named(request.node_policy or self.node)
        gpu = request.gpu_policy or (request.node_policy and self.gpu) or self.gpu
        return node, _named(gpu) if gpu else node


def _named(name: str) -> Policy:
    policy = _MADE.get(name)
    if policy is None:
        raise Usage(f"{name!r} is no placement policy", cure=f"one of {', '.join(POLICIES)}")
    return policy
