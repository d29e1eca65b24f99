"""NodeClaim (`karpenter.sh/v1`): one node that the autoscaler wants, from the decision to the end of its instance.

Its name is its identity: the cloud's instance carries it as a tag and its uid as client token, so a launch that is
repeated buys nothing twice. `spec` never changes. The finalizer keeps the claim until its instance is gone.

Source: the CRD of Karpenter 1.14.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from gpuplane.api.karpenter import GROUP, NodeClassRef, PoolRequirement
from kubekit.api.core import Taint
from kubekit.api.meta import Condition, ObjectMeta, Resource, Struct
from kubekit.api.quantity import Quantity

FINALIZER: Final = "karpenter.sh/termination"
LAUNCHED: Final = "Launched"
REGISTERED: Final = "Registered"
INITIALIZED: Final = "Initialized"
READY: Final = "Ready"
EMPTY: Final = "Empty"  # of the old API; the annotation emptiness-timestamp says the same on its node
CONSOLIDATABLE: Final = "Consolidatable"
DRIFTED: Final = "Drifted"
DRAINED: Final = "Drained"
VOLUMES_DETACHED: Final = "VolumesDetached"
INSTANCE_TERMINATING: Final = "InstanceTerminating"
DISRUPTION_REASON: Final = "DisruptionReason"
CONSISTENT: Final = "ConsistentStateFound"

UNREGISTERED_TAINT: Final = "karpenter.sh/unregistered"  # NoExecute, until the node's claim has found it
DISRUPTED_TAINT: Final = "karpenter.sh/disrupted"  # NoSchedule, from the decision to remove the node
REGISTERED_LABEL: Final = "karpenter.sh/registered"
INITIALIZED_LABEL: Final = "karpenter.sh/initialized"
HASH_ANNOTATION: Final = "karpenter.sh/nodepool-hash"
HASH_VERSION_ANNOTATION: Final = "karpenter.sh/nodepool-hash-version"
TERMINATION_ANNOTATION: Final = "karpenter.sh/nodeclaim-termination-timestamp"
MIN_VALUES_RELAXED_ANNOTATION: Final = "karpenter.sh/nodeclaim-min-values-relaxed"  # "true" or "false"
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
DO_NOT_EVICT: Final = "karpenter.sh/do-not-evict"  # of v1alpha5, on pods
DO_NOT_CONSOLIDATE: Final = "karpenter.sh/do-not-consolidate"  # of v1alpha5, on nodes
EMPTINESS_ANNOTATION: Final = "karpenter.sh/emptiness-timestamp"


class ClaimResources(Struct):
    """`spec.resources`: what the pods that the claim is for request."""

    requests: dict[str, Quantity] = {}


class NodeClaimSpec(Struct):
    """`spec` of a NodeClaim.

    `node_class_ref` names the pool where that describes its machines itself; `expire_after` and
    `termination_grace_period` are durations such as 720h, empty for none.
    """

    taints: tuple[Taint, ...] = ()
    startup_taints: tuple[Taint, ...] = ()
    requirements: tuple[PoolRequirement, ...] = ()
    resources: ClaimResources = ClaimResources()
    node_class_ref: NodeClassRef = NodeClassRef()
    expire_after: str = ""
    termination_grace_period: str = ""


class NodeClaimStatus(Struct):
    """`status` of a NodeClaim. `capacity` and `allocatable` are predicted until the node has joined."""

    node_name: str = ""
    provider_id: str = msgspec.field(default="", name="providerID")
    image_id: str = msgspec.field(default="", name="imageID")
    capacity: dict[str, Quantity] = {}
    allocatable: dict[str, Quantity] = {}
    last_pod_event_time: str = ""
    conditions: tuple[Condition, ...] = ()


class NodeClaim(Struct):
    """A node that is wanted, on its way, running or ending."""

    RESOURCE: ClassVar[Resource] = Resource(GROUP, "v1", "nodeclaims", "NodeClaim", False)

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeClaimSpec = NodeClaimSpec()
    status: NodeClaimStatus = NodeClaimStatus()
