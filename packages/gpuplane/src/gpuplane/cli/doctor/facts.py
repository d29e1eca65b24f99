"""The observed facts about an installation, as plain data for the checks.

Invariant: no check reads anything else. Times are Unix seconds of the API server's clock.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.gpunode import GPUNode
from kubekit.api.core import DaemonSet, Deployment, Event, LeaseObject, Node, Pod
from kubekit.api.kinds import built_in
from kubekit.api.meta import ObjectMeta, Resource, Struct

OPERATOR: Final = "gpu-operator"  # its Deployment


class ResourceQuotaStatus(Struct):
    hard: dict[str, str] = {}
    used: dict[str, str] = {}


class NamespaceResourceQuota(Struct):
    """A ResourceQuota of Kubernetes."""

    RESOURCE: ClassVar[Resource] = built_in("v1", "ResourceQuota")

    metadata: ObjectMeta = ObjectMeta()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class WebhookTrust(msgspec.Struct, frozen=True):
    """One webhook of gpuplane's configurations: the configuration's kind, its name, and the PEM of its caBundle."""

    kind: str
    name: str
    bundle: bytes


class DoctorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        program: the version of this program.
        version: the API server's `gitVersion`.
        clock: its clock, Unix time to a second.
        crds: by name, the definitions of gpuplane's kinds that the cluster has.
        wanted_crds: those that this program knows.
        pods: of all namespaces.
        gpu_quotas: the text of the GPU quotas; None without them.
    """

    program: str
    version: str = ""
    clock: float = 0.0
    crds: Mapping[str, Mapping[str, Any]] = {}
    wanted_crds: Sequence[Mapping[str, Any]] = ()
    leases: Sequence[LeaseObject] = ()
    node_leases: Sequence[LeaseObject] = ()
    deployments: Sequence[Deployment] = ()
    daemonsets: Sequence[DaemonSet] = ()
    pods: Sequence[Pod] = ()
    nodes: Sequence[Node] = ()
    gpunodes: Sequence[GPUNode] = ()
    policies: Sequence[ClusterPolicy] = ()
    bypasses: Sequence[Event] = ()
    webhooks: Sequence[WebhookTrust] = ()
    resource_quotas: Sequence[NamespaceResourceQuota] = ()
    gpu_quotas: str | None = None

    def deployment(self, name: str) -> Deployment | None:
        """Return a Deployment of the operator's namespace, None where it is missing."""
        return next((one for one in self.deployments if one.metadata.name == name), None)

    @property
    def image(self) -> str:
        """The image that operator and operands run; empty without an operator."""
        operator = self.deployment(OPERATOR)
        if operator is None:
            return ""
        [container] = operator.spec.template.spec.containers[:1] or [None]
        if container is None:
            return ""
        return next((one.value for one in container.env if one.name == "GPUPLANE_IMAGE" and one.value), container.image)

    @property
    def own_pods(self) -> list[Pod]:
        """The pods of the operator's namespace that have not ended."""
        return [one for one in self.pods if one.metadata.namespace == names.OPERATOR_NAMESPACE and not one.status.ended]


def unix(time: str | None) -> float:
    """Return an RFC 3339 time as Unix seconds; 0 for none."""
    return datetime.datetime.fromisoformat(time).timestamp() if time else 0.0


def tag(image: str) -> str:
    """Return the tag of an image, empty for one without."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[2]
