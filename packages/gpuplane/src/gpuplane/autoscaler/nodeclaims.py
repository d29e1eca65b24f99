"""The NodeClaim of a node to buy, and its conditions. Pure.

The name of a claim follows from the pods that it is for: a decision that is repeated, because the answer of its
creation was lost, creates nothing twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gpuplane.api import karpenter, nodeclaim
from gpuplane.api.karpenter import DeclaredPool, NodeClassRef, PoolRequirement
from gpuplane.api.karpenter_hash import HASH_VERSION
from gpuplane.api.nodeclaim import ClaimResources, NodeClaim, NodeClaimSpec
from gpuplane.autoscaler.asks import PodAsk
from gpuplane.autoscaler.catalogue import REGION_LABEL
from gpuplane.autoscaler.claims import MOST_OPTIONS, holds_all
from gpuplane.autoscaler.options import NodeOption, PoolLimits, PoolOptions
from gpuplane.autoscaler.overhead import DISK
from gpuplane.autoscaler.providers.provider import MachineClass
from gpuplane.autoscaler.purchase import BoughtNode
from gpuplane.autoscaler.quantities import as_quantities
from gpuplane.autoscaler.requirements import lacking_values, pool_conditions
from kubekit.api.meta import Condition, ObjectMeta, OwnerReference

CLASS_HASH_ANNOTATION: Final = "karpenter.k8s.aws/ec2nodeclass-hash"
CLASS_HASH_VERSION_ANNOTATION: Final = "karpenter.k8s.aws/ec2nodeclass-hash-version"
CHOSEN: Final = (karpenter.TYPE_LABEL, karpenter.CAPACITY_TYPE_LABEL, karpenter.ZONE_LABEL)
"""Labels that the launch decides."""
_SLACK_PERCENT: Final = {"memory": 1, DISK: 6}
_LONGEST_POOL: Final = 50  # characters of the pool's name in that of a claim


def launch_options(
    node: BoughtNode,
    found: PoolOptions,
    asks: Mapping[str, PodAsk],
    limits: PoolLimits,
    *,
    most: int | None = MOST_OPTIONS,
) -> tuple[NodeOption, ...]:
    """Return the options that may be launched for a node to buy, the cheapest first; its own option is the first.

    Args:
        found: what its pool can buy at this moment.
        asks: the pods by key, with all of their preferences.
        limits: what the other nodes of the same decision leave.
        most: how many options are returned; None for all of them.
    """
    pods = [asks[key].relaxed(len(node.given_up.get(key, ()))) for key in node.pods]
    own = own_labels(node.option)
    if found.has_min_values or not all(ask.free for ask in pods):
        candidates = [option for option in node.options if own_labels(option) == own]
    else:
        dearer = [option for option in found.options if option.price >= node.option.price]
        candidates = [option for option in dearer if own_labels(option) == own and holds_all(option, pods)]
    allowed = [option for option in candidates if option is not node.option and not limits.lacking(option)]
    return (node.option, *allowed)[:most]


def own_labels(option: NodeOption) -> dict[str, str]:
    """Return the labels that neither the type nor the place of an option decides: the pool's own."""
    given = {*option.machine.labels(), *CHOSEN, REGION_LABEL}
    return {key: value for key, value in option.facts.labels.items() if key not in given}


def claim_name(pool: str, option: NodeOption, uids: Iterable[str], number: int = 0) -> str:
    """Return the name of the claim for these pods; `number` tells several such claims apart."""
    text = "\n".join((pool, option.machine.name, str(number), *sorted(uids)))
    return f"{pool[:_LONGEST_POOL].rstrip('-.')}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def make_claim(
    node: BoughtNode, options: Sequence[NodeOption], name: str, machines: MachineClass, owner: OwnerReference
) -> NodeClaim:
    """Return the claim of a node to buy.

    Args:
        options: those of `launch_options`.
        owner: its pool.
    """
    pool = node.option.pool
    labels = own_labels(node.option)
    relaxed = any(one.min_values for one in pool.requirements) and lacking_values(
        pool_conditions(pool.requirements, pool.labels), [option.facts.labels for option in options]
    )
    annotations = {
        **pool.annotations,
        nodeclaim.MIN_VALUES_RELAXED_ANNOTATION: "true" if relaxed else "false",
        nodeclaim.HASH_ANNOTATION: pool.hash,
        nodeclaim.HASH_VERSION_ANNOTATION: HASH_VERSION,
        CLASS_HASH_ANNOTATION: machines.hash,
        CLASS_HASH_VERSION_ANNOTATION: HASH_VERSION,
    }
    return NodeClaim(
        metadata=ObjectMeta(
            name=name,
            labels=labels,
            annotations=annotations,
            owner_references=(owner,),
            finalizers=(nodeclaim.FINALIZER,),
        ),
        spec=NodeClaimSpec(
            taints=pool.taints,
            startup_taints=pool.startup_taints,
            requirements=_requirements(pool, options, labels),
            resources=ClaimResources(requests={**as_quantities(node.requests), "pods": str(len(node.pods))}),
            node_class_ref=_class_ref(pool),
            expire_after=_seconds(pool.disruption.expire_after, karpenter.NEVER),
            termination_grace_period=_seconds(pool.termination_grace, ""),
        ),
    )


def pool_reference(kind: str, name: str, uid: str) -> OwnerReference:
    """Return the owner of a pool's claims: they go when the pool does."""
    version = (
        karpenter.Provisioner.RESOURCE if kind == karpenter.Provisioner.RESOURCE.kind else karpenter.NodePool.RESOURCE
    )
    return OwnerReference(api_version=version.api_version, kind=kind, name=name, uid=uid, block_owner_deletion=True)


def _requirements(
    pool: DeclaredPool, options: Sequence[NodeOption], own: Mapping[str, str]
) -> tuple[PoolRequirement, ...]:
    """Return the pool's requirements, those that the launch decides narrowed to the options.

    minValues are no more than the options leave: a pool that relaxes them leaves fewer.
    """
    kept = [
        _narrowed(one, options) if one.min_values else one
        for one in pool.requirements
        if one.key not in CHOSEN and one.key not in own
    ]
    decided = {key: {one.key: one.min_values for one in pool.requirements}.get(key, 0) for key in CHOSEN}
    for key, least in decided.items():
        values = tuple(dict.fromkeys(option.facts.labels[key] for option in options if key in option.facts.labels))
        if values:
            kept.append(PoolRequirement(key=key, operator="In", values=values, min_values=min(least, len(values))))
    named = {one.key for one in pool.requirements}
    kept += [PoolRequirement(key=key, operator="In", values=(own[key],)) for key in sorted(own) if key in named]
    return tuple(kept)


def _narrowed(one: PoolRequirement, options: Sequence[NodeOption]) -> PoolRequirement:
    admits = pool_conditions((one,), {})[one.key].admits
    left = {value for option in options if (value := option.facts.labels.get(one.key)) and admits(value)}
    return msgspec.structs.replace(one, min_values=min(one.min_values, len(left)))


def _class_ref(pool: DeclaredPool) -> NodeClassRef:
    """Return the class of a pool; a Provisioner that describes its machines itself is its own."""
    if not pool.class_name:
        return NodeClassRef(group=karpenter.GROUP, kind=pool.kind, name=pool.name)
    return NodeClassRef(group=karpenter.AWS_GROUP, kind=pool.class_kind, name=pool.class_name)


def _seconds(seconds: float | None, otherwise: str) -> str:
    return otherwise if seconds is None else f"{seconds:.0f}s"  # NB: %g would write 720h as 2.592e+06s


def with_condition(
    conditions: Sequence[Condition], name: str, status: str, reason: str, message: str, now: str, generation: int = 0
) -> tuple[Condition, ...]:
    """Return the conditions with one set; its transition time moves only with its status."""
    old = next((one for one in conditions if one.type == name), None)
    since = old.last_transition_time if old is not None and old.status == status else f"{now[:19]}Z"
    new = Condition(
        type=name,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=since,
        observed_generation=generation,
    )
    if old is None:
        return (*conditions, new)
    return tuple(new if one.type == name else one for one in conditions)


def with_ready(conditions: Sequence[Condition], now: str, generation: int = 0) -> tuple[Condition, ...]:
    """Return the conditions with Ready, which is True if launch, registration and initialisation are."""
    states = {one.type: one for one in conditions}
    for name in (nodeclaim.LAUNCHED, nodeclaim.REGISTERED, nodeclaim.INITIALIZED):
        one = states.get(name)
        if one is None or one.status != "True":
            reason = one.reason if one is not None and one.reason else f"Not{name}"
            return with_condition(conditions, nodeclaim.READY, "False", reason, "", now, generation)
    return with_condition(conditions, nodeclaim.READY, "True", "Ready", "", now, generation)


def difference(predicted: Mapping[str, int], real: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return resource -> (predicted, real) where a node offers less, or another resource, than was predicted.

    Memory counts as equal within 1%, since no two machines of a type report the same, and the disk within 6%: file
    systems take different parts of it.
    """
    found = {}
    for name in sorted(predicted):
        expected, there = predicted[name], real.get(name, 0)
        slack = expected * _SLACK_PERCENT.get(name, 0) // 100
        if abs(expected - there) > slack:
            found[name] = (expected, there)
    return found


def encode_amounts(counted: Mapping[str, int]) -> str:
    """Return amounts as an annotation holds them."""
    return msgspec.json.encode(dict(sorted(counted.items()))).decode()
