"""Node pools as Karpenter's objects declare them, old and new.

Provisioner (`karpenter.sh/v1alpha5`) and NodePool (`karpenter.sh/v1beta1` and `v1`) are translated here into one
`DeclaredPool`. Their classes, AWSNodeTemplate (`karpenter.k8s.aws/v1alpha1`) and EC2NodeClass
(`karpenter.k8s.aws/v1beta1` and `v1`), become one `DeclaredClass`. No other module knows the forms. Only the fields
that describe a pool's nodes are read, or that a rule of the kind is about. gpuplane does not serve these kinds:
Karpenter's own CRDs do, so a cluster may have either kind, both, or neither.

Source: the CRDs of Karpenter 0.27 to 0.32 (v1alpha5), 0.32 to 1.0 (v1beta1) and 1.x (v1), and the defaults of its
webhook for AWS.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from gpuplane import names
from gpuplane.api.durations import duration
from gpuplane.api.karpenter_disk import disk_of_class, joins_local_disks
from gpuplane.api.karpenter_hash import class_hash, hash_of
from kubekit.api.core import Taint
from kubekit.api.meta import Condition, ObjectMeta, Resource, Struct
from kubekit.api.quantity import Quantity
from kubekit.errors import InvalidInput

GROUP: Final = names.KARPENTER_GROUP
AWS_GROUP: Final = "karpenter.k8s.aws"
POOL_LABEL: Final = "karpenter.sh/nodepool"
PROVISIONER_LABEL: Final = "karpenter.sh/provisioner-name"
CAPACITY_TYPE_LABEL: Final = "karpenter.sh/capacity-type"
INSTANCE_LABEL_PREFIX: Final = "karpenter.k8s.aws/instance-"
TYPE_LABEL: Final = "node.kubernetes.io/instance-type"
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
ARCH_LABEL: Final = "kubernetes.io/arch"
OS_LABEL: Final = "kubernetes.io/os"
NEVER: Final = "Never"
UNDERUTILIZED: Final = "WhenEmptyOrUnderutilized"
OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte")
OLD_OPERATORS: Final = OPERATORS[:6]
POLICIES: Final = ("WhenEmpty", UNDERUTILIZED, "Balanced")
OLD_POLICIES: Final = ("WhenEmpty", "WhenUnderutilized", UNDERUTILIZED)  # the last: Karpenter 1.0 converted the object
REASONS: Final = ("Underutilized", "Empty", "Drifted", "Unhealthy")
EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


class PoolRequirement(Struct):
    """A condition on the labels of a pool's nodes.

    `operator` is In, NotIn, Exists, DoesNotExist, Gt, Lt, Gte or Lte. `min_values` is the least number of different
    values that the pool's choice must leave; 0 for no minimum.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()
    min_values: int = 0


class PoolKubelet(Struct):
    """The kubelet's settings: `kubelet` and `kubeletConfiguration` alike. The first five change what nodes offer."""

    max_pods: int | None = None
    pods_per_core: int | None = None
    system_reserved: dict[str, Quantity] = {}
    kube_reserved: dict[str, Quantity] = {}
    eviction_hard: dict[str, str] = {}
    eviction_soft: dict[str, str] = {}
    eviction_soft_grace_period: dict[str, str] = {}
    eviction_max_pod_grace_period: int | None = None
    image_gc_high_threshold_percent: int | None = msgspec.field(default=None, name="imageGCHighThresholdPercent")
    image_gc_low_threshold_percent: int | None = msgspec.field(default=None, name="imageGCLowThresholdPercent")
    cpu_cfs_quota: bool | None = msgspec.field(default=None, name="cpuCFSQuota")
    cluster_dns: tuple[str, ...] = msgspec.field(default=(), name="clusterDNS")
    container_runtime: str = ""


class NodeTemplateMeta(Struct):
    """`spec.template.metadata` of a NodePool."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class NodeClassRef(Struct):
    """The reference to a class: `nodeClassRef` and `providerRef` alike. The latter has no `group`."""

    group: str = ""
    kind: str = ""
    name: str = ""


class NodeTemplateSpec(Struct):
    """The fields that a Provisioner has in `spec`, and a NodePool in `spec.template.spec`."""

    taints: tuple[Taint, ...] = ()
    startup_taints: tuple[Taint, ...] = ()
    requirements: tuple[PoolRequirement, ...] = ()


class ProvisionerLimits(Struct):
    """`spec.limits` of a Provisioner."""

    resources: dict[str, Quantity] = {}


class ProvisionerConsolidation(Struct):
    """`spec.consolidation` of a Provisioner."""

    enabled: bool = False


class ProvisionerSpec(NodeTemplateSpec):
    """`spec` of a Provisioner."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    kubelet_configuration: PoolKubelet = PoolKubelet()
    provider: dict[str, Any] | None = None
    provider_ref: NodeClassRef | None = None
    limits: ProvisionerLimits | None = None
    weight: int | None = None
    ttl_seconds_after_empty: int | None = None
    ttl_seconds_until_expired: int | None = None
    consolidation: ProvisionerConsolidation | None = None


class NodePoolTemplateSpec(NodeTemplateSpec):
    """`spec.template.spec` of a NodePool. `kubelet` is of v1beta1 only; v1 has it in the class."""

    kubelet: PoolKubelet = PoolKubelet()
    node_class_ref: NodeClassRef | None = None
    termination_grace_period: str | None = None
    expire_after: str = "720h"


class NodeTemplate(Struct):
    """`spec.template` of a NodePool."""

    metadata: NodeTemplateMeta = NodeTemplateMeta()
    spec: NodePoolTemplateSpec = NodePoolTemplateSpec()


class NodePoolBudget(Struct):
    """One of `spec.disruption.budgets`. `nodes` is a number, or a percentage of the pool's nodes."""

    nodes: str = "10%"
    reasons: tuple[str, ...] = ()
    schedule: str | None = None
    duration: str | None = None


class NodePoolDisruption(Struct):
    """`spec.disruption` of a NodePool. `expire_after` is of v1beta1 only; v1 has it in the template."""

    consolidate_after: str = "0s"
    consolidation_policy: str = UNDERUTILIZED
    budgets: tuple[NodePoolBudget, ...] = (NodePoolBudget(),)
    expire_after: str | None = None


class NodePoolSpec(Struct):
    """`spec` of a NodePool."""

    template: NodeTemplate = NodeTemplate()
    disruption: NodePoolDisruption = NodePoolDisruption()
    limits: dict[str, Quantity] = {}
    weight: int | None = None
    replicas: int | None = None


class PoolStatus(Struct):
    """`status` of either kind: `resources` are the sums over the pool's nodes, `nodes` among them or next to them."""

    resources: dict[str, Quantity] = {}
    nodes: int = 0
    conditions: tuple[Condition, ...] = ()


class Provisioner(Struct):
    """The node pool of Karpenter up to 0.32."""

    RESOURCE: ClassVar[Resource] = Resource(GROUP, "v1alpha5", "provisioners", "Provisioner", False)

    metadata: ObjectMeta = ObjectMeta()
    spec: ProvisionerSpec = ProvisionerSpec()
    status: PoolStatus = PoolStatus()


class NodePool(Struct):
    """The node pool of Karpenter 1.x."""

    RESOURCE: ClassVar[Resource] = Resource(GROUP, "v1", "nodepools", "NodePool", False)

    metadata: ObjectMeta = ObjectMeta()
    spec: NodePoolSpec = NodePoolSpec()
    status: PoolStatus = PoolStatus()


class BetaNodePool(NodePool):
    """The node pool of Karpenter 0.32 to 0.37, which serve no v1; Karpenter 1.0 serves the same objects as v1 too."""

    RESOURCE: ClassVar[Resource] = Resource(GROUP, "v1beta1", "nodepools", "NodePool", False)


POOL_KINDS: Final[tuple[type[Provisioner] | type[NodePool], ...]] = (Provisioner, NodePool, BetaNodePool)
NEWER: Final[dict[type[Provisioner] | type[NodePool], type[NodePool]]] = {BetaNodePool: NodePool}
"""Kind -> the kind that has the same objects in a newer version."""


CLASS_FINALIZER: Final = "karpenter.k8s.aws/termination"


class ClassSubnet(Struct):
    """A subnet that a class found, in its status."""

    id: str = ""
    zone: str = ""


class NodeClassStatus(Struct):
    """`status` of a class. `security_groups` and `amis` are written for people, and read to see a change only."""

    subnets: tuple[ClassSubnet, ...] = ()
    security_groups: tuple[dict[str, Any], ...] = ()
    amis: tuple[dict[str, Any], ...] = ()
    instance_profile: str = ""
    conditions: tuple[Condition, ...] = ()


class AWSNodeTemplate(Struct):
    """The class of a Provisioner's nodes."""

    RESOURCE: ClassVar[Resource] = Resource(AWS_GROUP, "v1alpha1", "awsnodetemplates", "AWSNodeTemplate", False)

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    status: NodeClassStatus = NodeClassStatus()


class EC2NodeClass(Struct):
    """The class of a NodePool's nodes. `CLASS_FINALIZER` keeps it while a NodeClaim uses it."""

    RESOURCE: ClassVar[Resource] = Resource(AWS_GROUP, "v1", "ec2nodeclasses", "EC2NodeClass", False)

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    status: NodeClassStatus = NodeClassStatus()


class BetaEC2NodeClass(EC2NodeClass):
    """The class of a BetaNodePool's nodes."""

    RESOURCE: ClassVar[Resource] = Resource(AWS_GROUP, "v1beta1", "ec2nodeclasses", "EC2NodeClass", False)


CLASS_KINDS: Final[tuple[type[AWSNodeTemplate] | type[EC2NodeClass], ...]] = (
    AWSNodeTemplate,
    EC2NodeClass,
    BetaEC2NodeClass,
)


class DeclaredClass(msgspec.Struct, frozen=True):
    """The machines of a pool's nodes. `zones` are those of its subnets, empty if they are unknown.

    `disk_bytes` is the size of the disk for pods, 0 if it is unknown. With `joins_local_disks` it is that of the local
    disks of instances that have some.
    `spec` is the object's own, for the provider; `hash` changes with each field of it that drifts nodes. `ends`: it is
    being deleted, so no node is bought of it any more.
    """

    kind: str
    name: str
    kubelet: PoolKubelet = PoolKubelet()
    zones: tuple[str, ...] = ()
    spec: dict[str, Any] = {}
    hash: str = ""
    disk_bytes: int = 0
    joins_local_disks: bool = False
    ends: bool = False


class DisruptionBudget(msgspec.Struct, frozen=True):
    """A limit on the nodes of a pool that are disrupted at the same time, while the budget is active.

    `nodes` is a number ("3") or a percentage of the pool's nodes, rounded up ("10%"). `reasons` are those it limits
    (Underutilized, Empty, Drifted, Unhealthy), all if empty. With a `schedule` (cron, in UTC) it is active for
    `duration` seconds after each hit, else always.
    """

    nodes: str
    reasons: tuple[str, ...] = ()
    schedule: str = ""
    duration: float = 0.0


class PoolDisruption(msgspec.Struct, frozen=True):
    """When nodes of a pool may be removed. All times are seconds, None for never.

    `policy` is WhenEmpty, WhenEmptyOrUnderutilized, Balanced, or empty for no consolidation. A node may be consolidated
    `consolidate_after` its last pod came or went. `empty_after` is ttlSecondsAfterEmpty of a Provisioner: a node is
    deleted so long after it was stamped empty. `expire_after` counts from the node's creation. No `budgets` is no
    limit.
    """

    consolidate_after: float | None = None
    policy: str = ""
    budgets: tuple[DisruptionBudget, ...] = ()
    empty_after: float | None = None
    expire_after: float | None = None


class DeclaredPool(msgspec.Struct, frozen=True):
    """The nodes that a pool declares. `startup_taints` are on a new node until their owner takes them off.

    `class_kind` and `class_name` name its class; both are empty if it describes its machines itself, in `machines`.
    `used` is what counts against `limits` already. Pools of higher `weight` are preferred. A drain that lasts longer
    than `termination_grace` seconds is forced; None waits for ever. `hash` changes with each field that drifts nodes.
    `relaxes_min_values` is the autoscaler's own setting: where minValues cannot be left, fewer values are.
    """

    name: str
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    startup_taints: tuple[Taint, ...] = ()
    requirements: tuple[PoolRequirement, ...] = ()
    kind: str = NodePool.RESOURCE.kind
    weight: int = 0
    limits: dict[str, Quantity] = {}
    used: dict[str, Quantity] = {}
    class_kind: str = ""
    class_name: str = ""
    kubelet: PoolKubelet = PoolKubelet()
    machines: dict[str, Any] = {}
    annotations: dict[str, str] = {}
    disruption: PoolDisruption = PoolDisruption()
    termination_grace: float | None = None
    hash: str = ""
    relaxes_min_values: bool = False


def declared_pool(pool: Provisioner | NodePool) -> DeclaredPool:
    """Return what the pool declares, from either kind, with the defaults of its kind."""
    if isinstance(pool, Provisioner):
        spec = pool.spec
        return DeclaredPool(
            name=pool.metadata.name,
            labels=spec.labels,
            taints=spec.taints,
            startup_taints=spec.startup_taints,
            requirements=spec.requirements + _provisioner_defaults(spec),
            kind=Provisioner.RESOURCE.kind,
            weight=spec.weight or 0,
            limits=spec.limits.resources if spec.limits else {},
            used=pool.status.resources,
            class_kind=AWSNodeTemplate.RESOURCE.kind if spec.provider_ref else "",
            class_name=spec.provider_ref.name if spec.provider_ref else "",
            kubelet=spec.kubelet_configuration,
            machines=spec.provider or {},
            annotations=spec.annotations,
            disruption=_provisioner_disruption(spec),
            hash=_provisioner_hash(spec),
        )
    template = pool.spec.template
    reference = template.spec.node_class_ref
    return DeclaredPool(
        name=pool.metadata.name,
        labels=template.metadata.labels,
        taints=template.spec.taints,
        startup_taints=template.spec.startup_taints,
        requirements=template.spec.requirements,
        weight=pool.spec.weight or 0,
        limits=pool.spec.limits,
        used=pool.status.resources,
        class_kind=(reference.kind or EC2NodeClass.RESOURCE.kind) if reference else "",
        class_name=reference.name if reference else "",
        kubelet=template.spec.kubelet,
        annotations=template.metadata.annotations,
        disruption=_node_pool_disruption(pool),
        termination_grace=duration(template.spec.termination_grace_period),
        hash=hash_of(msgspec.structs.replace(template, spec=msgspec.structs.replace(template.spec, requirements=()))),
    )


def declared_class(found: AWSNodeTemplate | EC2NodeClass) -> DeclaredClass:
    """Return what the class declares, from either kind. Raises InvalidInput for kubelet settings of another type."""
    try:
        kubelet = msgspec.convert(found.spec.get("kubelet") or {}, PoolKubelet)
    except msgspec.ValidationError as error:
        where = f"{found.RESOURCE.kind}/{found.metadata.name}"
        raise InvalidInput(f"spec.kubelet: {error}", where=where, cure="correct the field") from error
    zones = tuple(sorted({subnet.zone for subnet in found.status.subnets if subnet.zone}))
    return DeclaredClass(
        kind=found.RESOURCE.kind,
        name=found.metadata.name,
        kubelet=kubelet,
        zones=zones,
        spec=found.spec,
        hash=class_hash(found.spec),
        disk_bytes=disk_of_class(found.spec),
        joins_local_disks=joins_local_disks(found.spec),
        ends=bool(found.metadata.deletion_timestamp),
    )


def _provisioner_hash(spec: ProvisionerSpec) -> str:
    parts = (spec.annotations, spec.labels, spec.taints, spec.startup_taints, spec.kubelet_configuration)
    return hash_of(dict(zip(("annotations", "labels", "taints", "startupTaints", "kubelet"), parts, strict=True)))


def _provisioner_disruption(spec: ProvisionerSpec) -> PoolDisruption:
    """A Provisioner knows no budgets: all its empty nodes go together."""
    consolidates = spec.consolidation is not None and spec.consolidation.enabled
    return PoolDisruption(
        consolidate_after=0.0 if consolidates else None,
        policy=UNDERUTILIZED if consolidates else "",
        empty_after=spec.ttl_seconds_after_empty,
        expire_after=spec.ttl_seconds_until_expired,
    )


def _node_pool_disruption(pool: NodePool) -> PoolDisruption:
    wanted = pool.spec.disruption
    old = isinstance(pool, BetaNodePool)
    policy = wanted.consolidation_policy
    return PoolDisruption(
        consolidate_after=duration(wanted.consolidate_after),
        policy=UNDERUTILIZED if policy == "WhenUnderutilized" else policy,
        budgets=tuple(_budget(budget) for budget in wanted.budgets),
        expire_after=duration(wanted.expire_after or "720h") if old else duration(pool.spec.template.spec.expire_after),
    )


def _budget(budget: NodePoolBudget) -> DisruptionBudget:
    """A budget whose duration is no duration, or that has only one of schedule and duration, admits no disruption."""
    seconds = duration(budget.duration) if budget.duration else None
    if bool(budget.schedule) != (seconds is not None):
        return DisruptionBudget("0", budget.reasons)
    return DisruptionBudget(budget.nodes, budget.reasons, budget.schedule or "", seconds or 0.0)


# Requirements that the webhook of those releases adds, each unless the pool names the key: (key, value).
_PROVISIONER_DEFAULTS: Final = ((OS_LABEL, "linux"), (ARCH_LABEL, "amd64"), (CAPACITY_TYPE_LABEL, "on-demand"))
_CATEGORY, _GENERATION = INSTANCE_LABEL_PREFIX + "category", INSTANCE_LABEL_PREFIX + "generation"
_NAMES_TYPES: Final = frozenset((TYPE_LABEL, INSTANCE_LABEL_PREFIX + "family", _CATEGORY, _GENERATION))


def _provisioner_defaults(spec: ProvisionerSpec) -> tuple[PoolRequirement, ...]:
    named = {requirement.key for requirement in spec.requirements} | set(spec.labels)
    added = [PoolRequirement(key=k, operator="In", values=(v,)) for k, v in _PROVISIONER_DEFAULTS if k not in named]
    if not named & _NAMES_TYPES:
        # NB: without it such a pool would buy any type; no GPU type is of these categories.
        added.append(PoolRequirement(key=_CATEGORY, operator="In", values=("c", "m", "r")))
        added.append(PoolRequirement(key=_GENERATION, operator="Gt", values=("2",)))
    return tuple(added)
