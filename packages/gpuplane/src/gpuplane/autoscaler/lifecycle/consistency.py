"""The comparison of a node with what its claim was bought for: enough of each resource that the claim asks for. Pure.

Source: the check of Karpenter 1.14, which compares capacities each 10 min and bears a tenth less. Predicted amounts
count here too, since the status of a claim takes over the figures of its node once that is initialised.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuplane import names
from gpuplane.api.nodeclaim import NodeClaim
from kubekit.api.core import Node
from kubekit.scheduling.podinfo import amounts

LEAST_PART: Final = 0.9  # of what is expected


def shape_issues(claim: NodeClaim, node: Node) -> tuple[str, ...]:
    """Return what the node has too little of, as words; empty if it is as its claim expects."""
    here = amounts(node.status.capacity)
    expected = amounts(claim.status.capacity)
    for name, amount in _predicted(claim).items():
        expected[name] = max(expected.get(name, 0), amount)
    found = []
    for name, wanted in sorted(amounts(claim.spec.resources.requests).items()):
        there, full = here.get(name, 0), expected.get(name, 0)
        if wanted > 0 and full > 0 and there / full < LEAST_PART:
            found.append(f"the node has {there} of {name} instead of {full}, {100 * there / full:.1f}%")
    return tuple(found)


def _predicted(claim: NodeClaim) -> dict[str, int]:
    """Return the allocatable that was predicted at the launch; empty for an unknown one."""
    try:
        found = msgspec.json.decode(claim.metadata.annotations.get(names.PREDICTED_ANNOTATION, "{}"))
    except msgspec.DecodeError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: amount for name, amount in found.items() if isinstance(amount, int)}
