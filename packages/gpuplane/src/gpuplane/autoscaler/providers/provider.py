"""The questions of the autoscaler to a cloud. All that it knows of clouds goes through `CloudProvider`.

A provider observes and acts; it decides nothing. Every call may fail, arrive twice or late: `launch` with the same
token returns the instance of the first call, `terminate` of an instance that is gone succeeds. Errors are those of
`kubekit.errors` (Retryable, Terminal) and `NoCapacity`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, Protocol

import msgspec

from gpuplane.autoscaler.catalogue import InstanceType
from kubekit.errors import Retryable

MANAGED_TAG: Final = "karpenter.sh/managed-by"  # value: the cluster's name
CLAIM_TAG: Final = "karpenter.sh/nodeclaim"
POOL_TAG: Final = "karpenter.sh/nodepool"
CLASS_TAG: Final = "karpenter.k8s.aws/ec2nodeclass"  # of a launch template that was made of an EC2NodeClass


SUBNETS: Final = "SubnetsReady"
SECURITY_GROUPS: Final = "SecurityGroupsReady"
IMAGES: Final = "AMIsReady"
PROFILE: Final = "InstanceProfileReady"
VALIDATION: Final = "ValidationSucceeded"
CLASS_PARTS: Final = (SUBNETS, SECURITY_GROUPS, IMAGES, PROFILE, VALIDATION)
"""Conditions of a class, in the order in which its parts are looked up."""


class MachineClass(msgspec.Struct, frozen=True):
    """The machines of a pool, as its class object or its own `provider` declares them.

    `spec` is the object's own text, read by the provider alone: an AWSNodeTemplate's, an EC2NodeClass's, or the
    `provider` of a Provisioner. `name` is empty for the last. `hash` changes when a field of it does that drifts nodes.
    """

    kind: str
    name: str
    spec: dict[str, Any] = {}
    hash: str = ""


class Offering(msgspec.Struct, frozen=True, order=True):
    """One way to buy one type. `price` is in dollars an hour."""

    price: float
    machine: str
    zone: str
    capacity_type: str


class ResolvedClass(msgspec.Struct, frozen=True):
    """The meaning of a class in the cloud now. `trouble` says why nothing can be launched of it, with a cure.

    `lacking` is the condition of `CLASS_PARTS` that the trouble is about. `profile` is the nodes' instance profile.
    `disk_bytes` is the size of the disk of the launch template that the class names, 0 where it is unknown.
    `subnets` are (id, zone); `images` are (id, arch, whether it is for GPUs), the newest first; `version` is that of
    the launch template that the class names, empty where it names none.
    """

    zones: tuple[str, ...] = ()
    subnets: tuple[tuple[str, str], ...] = ()
    security_groups: tuple[str, ...] = ()
    images: tuple[tuple[str, str, bool], ...] = ()
    version: str = ""
    trouble: str = ""
    lacking: str = ""
    profile: str = ""
    disk_bytes: int = 0


class LaunchRequest(msgspec.Struct, frozen=True):
    """One instance to launch.

    `token` makes a repeated launch harmless: the uid of the claim. `offerings` are those that hold the claim's pods,
    the cheapest first; the provider launches the first that the cloud has. `labels` and `taints` are those that the
    node registers with (a taint as key, value, effect). With `own_prices` some offerings have other prices than the
    cloud's, so the order counts and not what the cloud would find cheapest.
    """

    claim: str
    token: str
    pool: str
    machines: MachineClass
    offerings: tuple[Offering, ...]
    labels: dict[str, str] = {}
    taints: tuple[tuple[str, str, str], ...] = ()
    kubelet: dict[str, Any] = {}
    own_prices: bool = False


class CloudInstance(msgspec.Struct, frozen=True):
    """An instance with the tags of this cluster. `launched` is RFC 3339, `state` pending, running, stopping or gone.

    `version` is that of the launch template which it was launched from.
    """

    provider_id: str
    claim: str
    pool: str
    machine: str
    zone: str
    capacity_type: str
    image: str
    state: str
    launched: str
    subnet: str = ""
    security_groups: tuple[str, ...] = ()
    version: str = ""


HEALTH: Final = "health"
IMPAIRED: Final = "impaired"


class Interruption(msgspec.Struct, frozen=True):
    """The cloud's notice about an instance. `kind` is spot-interruption, rebalance, health, impaired or state-change.

    `receipt` acknowledges it, empty for one that has no message: a notice that is not acknowledged comes again.
    """

    kind: str
    provider_id: str
    receipt: str


class NoCapacity(Retryable):
    """None of a request's offerings can be had now. `closed` are those that the cloud refused."""

    def __init__(self, what: str, *, closed: Sequence[Offering] = (), where: str = "", cure: str = "") -> None:
        super().__init__(what, where=where, cure=cure)
        self.closed = tuple(closed)


class CloudProvider(Protocol):
    """One cloud, for one cluster."""

    async def types(self) -> Sequence[InstanceType]:
        """Return the types of the region with their prices by capacity type; remembered for minutes."""
        ...

    async def resolve(self, machines: MachineClass) -> ResolvedClass:
        """Return what a class means now; remembered for a minute."""
        ...

    async def launch(self, request: LaunchRequest) -> CloudInstance:
        """Launch one instance. Raises NoCapacity, Retryable, or Terminal for a request that can never succeed."""
        ...

    async def instance(self, provider_id: str) -> CloudInstance | None:
        """Return an instance; None if it is gone."""
        ...

    async def instances(self) -> Sequence[CloudInstance]:
        """Return this cluster's instances that are not gone."""
        ...

    async def terminate(self, provider_id: str) -> None:
        """Begin to end an instance; one that is gone is no error."""
        ...

    async def reboot(self, provider_id: str) -> None:
        """Restart an instance."""
        ...

    async def release(self, machines: MachineClass) -> None:
        """Delete what was made in the cloud for a class that no instance is launched of any more."""
        ...

    def interruptions(self) -> AsyncGenerator[Interruption, None]:
        """Yield notices for ever, of the queue if one is configured."""
        ...

    async def acknowledge(self, notice: Interruption) -> None:
        """Tell the cloud that a notice has been acted upon."""
        ...

    async def aclose(self) -> None:
        """Give back connections and threads."""
        ...
