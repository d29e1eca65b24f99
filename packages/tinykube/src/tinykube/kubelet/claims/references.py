"""Resource claims as a kubelet reads them, and whether a pod may use one.

Source: staging/src/k8s.io/dynamic-resource-allocation/resourceclaim of Kubernetes 1.36.
"""

from __future__ import annotations

from typing import ClassVar

from kubekit.api.kinds import built_in
from kubekit.api.meta import ObjectMeta, Resource, Struct
from kubekit.errors import Retryable
from tinykube.kubelet.claims.checkpoint import NodePreparedClaim
from tinykube.kubelet.pod import KubeletPod, PodResourceClaim


class ClaimUser(Struct):
    """A user of a claim."""

    uid: str = ""


class DeviceResult(Struct):
    """A device of an allocation; the rest of it is the driver's."""

    driver: str


class DeviceResults(Struct):
    results: tuple[DeviceResult, ...] = ()


class ClaimAllocation(Struct):
    devices: DeviceResults = DeviceResults()


class KubeletClaimStatus(Struct):
    allocation: ClaimAllocation | None = None
    reserved_for: tuple[ClaimUser, ...] = ()


class KubeletClaim(Struct):
    RESOURCE: ClassVar[Resource] = built_in("resource.k8s.io/v1", "ResourceClaim")

    metadata: ObjectMeta = ObjectMeta()
    status: KubeletClaimStatus = KubeletClaimStatus()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def drivers(self) -> tuple[str, ...]:
        """Return the drivers of the claim's devices."""
        allocation = self.status.allocation
        return tuple(dict.fromkeys(one.driver for one in allocation.devices.results)) if allocation else ()

    def on_node(self) -> NodePreparedClaim:
        """Return the claim as a node remembers it, before it is prepared."""
        meta = self.metadata
        return NodePreparedClaim(meta.namespace, meta.name, meta.uid, drivers=dict.fromkeys(self.drivers, ()))


def claim_name(pod: KubeletPod, one: PodResourceClaim) -> str | None:
    """Return the name of a pod's claim, None where none is needed. Raises Retryable while it is not made."""
    if one.resource_claim_name:
        return one.resource_claim_name
    for made in pod.status.resource_claim_statuses:
        if made.name == one.name:
            return made.resource_claim_name
    raise Retryable(f'pod "{pod.metadata.namespace}/{pod.metadata.name}": ResourceClaim not created yet')


def check_usable(pod: KubeletPod, claim: KubeletClaim, *, made: bool) -> None:
    """Raise Retryable unless the claim has devices and the pod is one of its users.

    Args:
        made: the claim was made from a template, for this pod alone.
    """
    meta, name = pod.metadata, claim.metadata.name
    if made and not any(owner.controller and owner.uid == meta.uid for owner in claim.metadata.owner_references):
        key = f"{meta.namespace}/{meta.name}"
        raise Retryable(f"ResourceClaim {claim.key} was not created for Pod {key} (Pod is not owner)")
    if not any(user.uid == meta.uid for user in claim.status.reserved_for):
        uid = claim.metadata.uid
        raise Retryable(f"pod {meta.name} ({meta.uid}) is not allowed to use ResourceClaim {name} ({uid})")
    if claim.status.allocation is None:
        raise Retryable(f"ResourceClaim {name}: not allocated")
