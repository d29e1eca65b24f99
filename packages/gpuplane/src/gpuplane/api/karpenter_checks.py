"""The rules of Karpenter's pools that no type of a field expresses, and the reading of its objects by them.

No decision counts on a pool that the pool's own API server would refuse. Each rule names its field; all
findings of an object come at once.

Source: the validation rules of the CRDs of `karpenter.sh/v1`, and the webhook of `karpenter.sh/v1alpha5`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from gpuplane.api import karpenter
from gpuplane.api.karpenter import (
    CLASS_KINDS,
    EFFECTS,
    OLD_OPERATORS,
    OLD_POLICIES,
    OPERATORS,
    POLICIES,
    POOL_KINDS,
    REASONS,
    BetaNodePool,
    DeclaredClass,
    DeclaredPool,
    NodePool,
    NodePoolBudget,
    PoolRequirement,
    Provisioner,
    ProvisionerSpec,
)
from gpuplane.api.karpenter_aws_checks import kubelet_problems, machines_problems
from gpuplane.api.karpenter_labels import RESTRICTED, is_restricted
from kubekit.api.core import Taint
from kubekit.api.quantity import Quantity, parse_quantity
from kubekit.errors import InvalidInput

STATIC: Final = "spec.replicas"
COMPARISONS: Final = ("Gt", "Lt", "Gte", "Lte")
_MOST_REQUIREMENTS, _MOST_MIN_VALUES, _MOST_WEIGHT = 100, 50, 100
_MOST_BUDGETS: Final = 50
_SECONDS: Final = re.compile(r"([0-9]+[smh])+")
# Where a pool has the template of its nodes, their labels, its limits, and the settings of the kubelet.
_OLD_PLACES: Final = ("spec", "spec.labels", "spec.limits.resources", "spec.kubeletConfiguration")
_PLACES: Final = ("spec.template.spec", "spec.template.metadata.labels", "spec.limits", "spec.template.spec.kubelet")
_MINUTES: Final = re.compile(r"([0-9]+[hm]|[0-9]+h[0-9]+m)(0s)?")
_NODES: Final = re.compile(r"(100|[0-9]{1,2})%|[0-9]+")
_SCHEDULE: Final = re.compile(r"^@(annually|yearly|monthly|weekly|daily|midnight|hourly)$|^\S+(\s+\S+){4}$")


def is_pool(data: Any) -> bool:
    """Return whether an object is of a kind that `read_pool` reads."""
    return _kind_of(data, POOL_KINDS) is not None


def is_class(data: Any) -> bool:
    """Return whether an object is of a kind that `read_class` reads."""
    return _kind_of(data, CLASS_KINDS) is not None


def read_pool(data: Mapping[str, Any]) -> DeclaredPool:
    """Translate a Provisioner or a NodePool. Raises InvalidInput with a finding for each rule that it breaks."""
    kind = _kind_of(data, POOL_KINDS)
    assert kind is not None, "callers ask is_pool first"
    pool = _convert(data, kind)
    declared = karpenter.declared_pool(pool)
    if found := list(_problems(pool, declared)):
        where = f"{kind.RESOURCE.kind}/{declared.name}"
        cure = "correct the fields, Karpenter refuses them too"
        what = f"the pool breaks {len(found)} rule{'s' * (len(found) > 1)} of its kind"
        raise InvalidInput(what, where=where, cure=cure, findings=tuple(found))
    return declared


def pool_problems(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield path and message of each rule that a pool breaks, which decodes; its machines are judged too."""
    pool = msgspec.convert(data, _kind_of(data, POOL_KINDS))
    declared = karpenter.declared_pool(pool)
    for problem in _problems(pool, declared):
        path, _, message = problem.partition(": ")
        yield path, message
    if not isinstance(pool, Provisioner):
        return
    for path, message in machines_problems(declared.machines) if declared.machines else ():
        yield f"spec.provider{path and '.'}{path}", message
    for path, message in kubelet_problems(msgspec.to_builtins(declared.kubelet)):
        yield f"spec.kubeletConfiguration.{path}", message


def _problems(pool: Provisioner | NodePool, declared: DeclaredPool) -> Iterator[str]:
    """Yield each rule that the pool breaks, as `path: message`."""
    old = isinstance(pool, Provisioner)
    yield from _of_provisioner(pool.spec) if isinstance(pool, Provisioner) else _of_node_pool(pool)
    places = _OLD_PLACES if old else _PLACES
    yield from _of_both(declared, OLD_OPERATORS if old or isinstance(pool, BetaNodePool) else OPERATORS, places)


def read_class(data: Mapping[str, Any]) -> DeclaredClass:
    """Translate an AWSNodeTemplate or an EC2NodeClass. Raises InvalidInput for a field of another type."""
    kind = _kind_of(data, CLASS_KINDS)
    assert kind is not None, "callers ask is_class first"
    return karpenter.declared_class(_convert(data, kind))


def _kind_of(data: Any, kinds: Iterable[Any]) -> Any:
    if not isinstance(data, Mapping):
        return None
    place = (data.get("apiVersion"), data.get("kind"))
    return next((kind for kind in kinds if place == (kind.RESOURCE.api_version, kind.RESOURCE.kind)), None)


def _convert(data: Mapping[str, Any], kind: Any) -> Any:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        meta = data.get("metadata")
        name = meta.get("name", "") if isinstance(meta, Mapping) else ""
        raise InvalidInput(str(error), where=f"{kind.RESOURCE.kind}/{name}", cure="correct the field") from error


def _of_provisioner(spec: ProvisionerSpec) -> Iterator[str]:
    if (spec.provider is None) == (spec.provider_ref is None):
        yield "spec.provider: exactly one of provider and providerRef is set"
    if spec.ttl_seconds_after_empty is not None and spec.consolidation is not None and spec.consolidation.enabled:
        yield "spec.ttlSecondsAfterEmpty: is not set together with consolidation.enabled: true"
    for field, value in (
        ("ttlSecondsAfterEmpty", spec.ttl_seconds_after_empty),
        ("ttlSecondsUntilExpired", spec.ttl_seconds_until_expired),
    ):
        if value is not None and value < 0:
            yield f"spec.{field}: {value} is below 0"
    yield from _of_weight(spec.weight)
    for index, requirement in enumerate(spec.requirements):
        if requirement.min_values:
            yield f"spec.requirements[{index}].minValues: is unknown in {Provisioner.RESOURCE.api_version}"


def _of_node_pool(pool: NodePool) -> Iterator[str]:
    if pool.spec.template.spec.node_class_ref is None or not pool.spec.template.spec.node_class_ref.name:
        yield "spec.template.spec.nodeClassRef: names no class"
    if pool.spec.replicas is not None:
        yield f"{STATIC}: static pools are left out; they buy the same nodes whatever pods request"
    yield from _of_weight(pool.spec.weight)
    yield from _of_disruption(pool)


def _of_disruption(pool: NodePool) -> Iterator[str]:
    template, wanted = pool.spec.template.spec, pool.spec.disruption
    old = isinstance(pool, BetaNodePool)
    policies = OLD_POLICIES if old else POLICIES
    if wanted.consolidation_policy not in policies:
        yield (
            f"spec.disruption.consolidationPolicy: {wanted.consolidation_policy!r} is unknown, "
            f"choose of {', '.join(policies)}"
        )
    grace = template.termination_grace_period
    for field, value, never in (
        ("spec.disruption.consolidateAfter", wanted.consolidate_after, True),
        ("spec.disruption.expireAfter", wanted.expire_after, True),
        ("spec.template.spec.expireAfter", template.expire_after, True),
        ("spec.template.spec.terminationGracePeriod", grace, False),
    ):
        if value is not None and not (never and value == karpenter.NEVER) and not _SECONDS.fullmatch(value):
            yield f"{field}: {value!r} is no duration such as 1h30m{' or Never' * never}"
    if len(wanted.budgets) > _MOST_BUDGETS:
        yield f"spec.disruption.budgets: {len(wanted.budgets)} are more than {_MOST_BUDGETS}"
    for index, budget in enumerate(wanted.budgets):
        for problem in _of_budget(budget):
            yield f"spec.disruption.budgets[{index}].{problem}"


def _of_budget(budget: NodePoolBudget) -> Iterator[str]:
    if not _NODES.fullmatch(budget.nodes):
        yield f"nodes: {budget.nodes!r} is no whole number and no percentage from 0% to 100%"
    for reason in budget.reasons:
        if reason not in REASONS:
            yield f"reasons: {reason!r} is unknown, choose of {', '.join(REASONS)}"
    if (budget.schedule is None) != (budget.duration is None):
        yield "schedule: is set together with duration only"
    if budget.schedule is not None and not _SCHEDULE.search(budget.schedule):
        yield f"schedule: {budget.schedule!r} is no cron schedule of five fields, and none such as @daily"
    if budget.duration is not None and not _MINUTES.fullmatch(budget.duration):
        yield f"duration: {budget.duration!r} is no duration in hours and minutes such as 1h30m"


def _of_weight(weight: int | None) -> Iterator[str]:
    if weight is not None and not 1 <= weight <= _MOST_WEIGHT:
        yield f"spec.weight: {weight} is not from 1 to {_MOST_WEIGHT}"


def _of_both(pool: DeclaredPool, operators: tuple[str, ...], places: tuple[str, str, str, str]) -> Iterator[str]:
    template, labels, limits, kubelet = places
    if not pool.name:
        yield "metadata.name: is missing"
    if len(pool.requirements) > _MOST_REQUIREMENTS:
        yield f"{template}.requirements: {len(pool.requirements)} are more than {_MOST_REQUIREMENTS}"
    for index, requirement in enumerate(pool.requirements):
        for problem in requirement_problems(requirement, operators):
            yield f"{template}.requirements[{index}]: {requirement.key}: {problem}"
    for key in pool.labels:
        if is_restricted(key):
            yield f"{labels}: {key} {RESTRICTED}"
    for field, taints in (("taints", pool.taints), ("startupTaints", pool.startup_taints)):
        yield from _of_taints(f"{template}.{field}", taints)
    yield from _of_amounts(limits, pool.limits)
    yield from _of_amounts(f"{kubelet}.systemReserved", pool.kubelet.system_reserved)
    yield from _of_amounts(f"{kubelet}.kubeReserved", pool.kubelet.kube_reserved)


def requirement_problems(requirement: PoolRequirement, operators: tuple[str, ...] = OPERATORS) -> Iterator[str]:
    """Yield the rules that a requirement breaks."""
    values, operator = requirement.values, requirement.operator
    if operator not in operators:
        yield f"operator {operator!r} is unknown, choose of {', '.join(operators)}"
    elif operator == "In" and not values:
        yield "In needs values"
    elif operator in COMPARISONS and not (len(values) == 1 and values[0].isascii() and values[0].isdigit()):
        yield f"{operator} needs one whole number from 0 on"
    elif operator in ("Exists", "DoesNotExist") and values:
        yield f"{operator} has no values"
    if not 0 <= requirement.min_values <= _MOST_MIN_VALUES:
        yield f"minValues {requirement.min_values} is not from 1 to {_MOST_MIN_VALUES}"
    elif operator == "In" and requirement.min_values > len(set(values)):
        yield f"minValues {requirement.min_values} is more than the {len(set(values))} values"
    if is_restricted(requirement.key):
        yield RESTRICTED


def _of_taints(field: str, taints: tuple[Taint, ...]) -> Iterator[str]:
    seen = set()
    for index, taint in enumerate(taints):
        if taint.effect not in EFFECTS:
            yield f"{field}[{index}]: effect {taint.effect!r} is unknown, choose of {', '.join(EFFECTS)}"
        if (taint.key, taint.effect) in seen:
            yield f"{field}[{index}]: {taint.key} with effect {taint.effect} stands there already"
        seen.add((taint.key, taint.effect))


def _of_amounts(field: str, amounts: Mapping[str, Quantity]) -> Iterator[str]:
    for name, amount in amounts.items():
        try:
            below = parse_quantity(amount) < 0
        except InvalidInput as error:
            yield f"{field}.{name}: {error.what}"
            continue
        if below:
            yield f"{field}.{name}: {amount} is below 0"
