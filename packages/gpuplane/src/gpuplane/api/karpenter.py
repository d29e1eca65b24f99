"""Node pools as Karpenter declares them: Provisioner (`karpenter.sh/v1alpha5`) and NodePool (`karpenter.sh/v1`).

Both kinds are translated here into one `DeclaredPool`; no other module knows the two forms. Only the fields that
describe a pool's nodes are read. gpuplane does not serve these kinds: Karpenter's own CRDs do, so a cluster may have
either kind, both, or neither.

Source: the CRDs of Karpenter 0.32 (v1alpha5) and 1.x (v1).
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from kubekit.api.core import Taint
from kubekit.api.meta import ObjectMeta, Resource, Struct

GROUP: Final = "karpenter.sh"


class PoolRequirement(Struct):
    """A condition on the labels of a pool's nodes.

    `operator` is In, NotIn, Exists, DoesNotExist, Gt or Lt. `min_values` is the least number of different values that
    the pool's choice must leave; 0 for no minimum.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()
    min_values: int = 0


class NodeTemplateMeta(Struct):
    """`spec.template.metadata` of a NodePool."""

    labels: dict[str, str] = {}


class NodeTemplateSpec(Struct):
    """The fields that a Provisioner has in `spec`, and a NodePool in `spec.template.spec`."""

    taints: tuple[Taint, ...] = ()
    startup_taints: tuple[Taint, ...] = ()
    requirements: tuple[PoolRequirement, ...] = ()


class ProvisionerSpec(NodeTemplateSpec):
    """`spec` of a Provisioner."""

    labels: dict[str, str] = {}


class NodeTemplate(Struct):
    """`spec.template` of a NodePool."""

    metadata: NodeTemplateMeta = NodeTemplateMeta()
    spec: NodeTemplateSpec = NodeTemplateSpec()


class NodePoolSpec(Struct):
    """`spec` of a NodePool."""

    template: NodeTemplate = NodeTemplate()


class Provisioner(Struct):
    """The node pool of Karpenter before 0.33."""

    RESOURCE: ClassVar[Resource] = Resource(GROUP, "v1alpha5", "provisioners", "Provisioner", False)

    metadata: ObjectMeta = ObjectMeta()
    spec: ProvisionerSpec = ProvisionerSpec()


class NodePool(Struct):
    """The node pool of Karpenter 1.x."""

    RESOURCE: ClassVar[Resource] = Resource(GROUP, "v1", "nodepools", "NodePool", False)

    metadata: ObjectMeta = ObjectMeta()
    spec: NodePoolSpec = NodePoolSpec()


POOL_KINDS: Final[tuple[type[Provisioner] | type[NodePool], ...]] = (Provisioner, NodePool)


class DeclaredPool(msgspec.Struct, frozen=True):
    """The nodes that a pool declares. `startup_taints` are on a new node until their owner takes them off."""

    name: str
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    startup_taints: tuple[Taint, ...] = ()
    requirements: tuple[PoolRequirement, ...] = ()


def declared_pool(pool: Provisioner | NodePool) -> DeclaredPool:
    """Return what the pool declares, from either kind."""
    if isinstance(pool, Provisioner):
        template: NodeTemplateSpec = pool.spec
        labels = pool.spec.labels
    else:
        template = pool.spec.template.spec
        labels = pool.spec.template.metadata.labels
    return DeclaredPool(
        name=pool.metadata.name,
        labels=labels,
        taints=template.taints,
        startup_taints=template.startup_taints,
        requirements=template.requirements,
    )
