"""Changes of a pod or of a pool that may let the pool buy a node: each takes away one rule that says no.

A change is a sentence or a command that a person carries out. Whether it helps is decided by `explain.pools`, which
makes the real decision again with the changed pod and the changed pool. Pure.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api import karpenter
from gpuplane.api.karpenter import DeclaredPool, PoolRequirement
from gpuplane.autoscaler.asks import PodAsk, pod_conditions
from gpuplane.autoscaler.existing import hold_pod
from gpuplane.autoscaler.options import NodeOption, PoolLimits, PoolOptions
from gpuplane.autoscaler.quantities import as_quantities
from gpuplane.explain.pod_cures import asking, changed
from gpuplane.sharing import request_of
from gpuplane.sharing.request import WHOLE
from kubekit.api.core import Pod
from kubekit.api.quantity import parse_quantity
from kubekit.scheduling import filters

Object = dict[str, Any]
Offers = Callable[[DeclaredPool], PoolOptions]
_FEWEST: Final = 8  # numbers of GPUs that are tried
_NAMES_POOL: Final = (karpenter.POOL_LABEL, karpenter.PROVISIONER_LABEL)


class PoolChange(msgspec.Struct, frozen=True):
    """One change: its words, and the pod and the pool after it. `of_pod`: the pod is changed, else the pool."""

    words: str
    pod: Object
    pool: DeclaredPool
    of_pod: bool


def changes(pod: Object, ask: PodAsk, found: PoolOptions, offers: Offers) -> Iterator[PoolChange]:
    """Yield changes against the first rule by which a pool does not buy for a pod.

    Args:
        offers: what a changed pool could buy.
    """
    pool = found.pool
    if found.options:
        taint = filters.untolerated(found.options[0].facts.taints, ask.info.tolerations)
        if taint is not None:
            toleration = {"key": taint.key, "operator": "Exists", "effect": taint.effect}
            new = changed(pod, lambda one: one["spec"].setdefault("tolerations", []).append(toleration))
            yield PoolChange(f"tolerate {taint.key}:{taint.effect}", new, pool, True)
            return
        key = _disputed(ask, found)
        if key:
            if key not in _NAMES_POOL:  # who names another pool wants that pool
                yield from _without_label(pod, pool, key)
            return
        admitted = [one for one in found.options if filters.check_affinity(ask.info, one.facts) is None]
        roomy = [one for one in admitted if not isinstance(hold_pod(one, {}, 0, one.gpus, ask), str)]
        if roomy:
            yield from _higher_limit(pod, pool, roomy)
            return
    yield from _other_types(pod, ask, pool, offers)
    yield from _fewer_gpus(pod, found)


def _disputed(ask: PodAsk, found: PoolOptions) -> str:
    """Return the first label on which pod and pool agree about no value; empty for none."""
    for key, condition in sorted(pod_conditions(ask.info).items()):
        offered = found.conditions.get(key)
        if offered is not None and not condition.overlaps(offered):
            return key
        if not any(condition.admits(one.facts.labels.get(key)) for one in found.options):
            return key
    return ""


def _without_label(pod: Object, pool: DeclaredPool, key: str) -> Iterator[PoolChange]:
    spec = pod["spec"]
    words = []
    new = copy.deepcopy(pod)
    if key in (spec.get("nodeSelector") or {}):
        words.append(f"drop {key}={new['spec']['nodeSelector'].pop(key)} of the nodeSelector")
    affinity = (new["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or []
    if any(part["key"] == key for term in terms for part in term.get("matchExpressions") or ()):
        for term in terms:
            term["matchExpressions"] = [part for part in term.get("matchExpressions") or () if part["key"] != key]
        if not any(term["matchExpressions"] or term.get("matchFields") for term in terms):
            del affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        words.append(f"drop {key} of the node affinity")
    if words:
        yield PoolChange("; ".join(words), new, pool, True)


def _higher_limit(pod: Object, pool: DeclaredPool, roomy: Sequence[NodeOption]) -> Iterator[PoolChange]:
    """The limits that the cheapest node would exceed, each as high as that node needs."""
    used = {name: parse_quantity(amount) for name, amount in pool.used.items()}
    option = min(roomy, key=lambda one: one.price)
    if not PoolLimits([pool]).lacking(option):
        return
    needs = {**as_quantities(option.capacity), "nodes": "1"}
    higher = {}
    for name, limit in pool.limits.items():
        needed = used.get(name, parse_quantity(0)) + parse_quantity(needs.get(name, 0))
        if needed > parse_quantity(limit):
            higher[name] = f"{needed.normalize():f}"
    field: dict[str, Any] = {"resources": higher} if pool.kind == karpenter.Provisioner.RESOURCE.kind else higher
    words = f"{_patch(pool, 'merge')} '{json.dumps({'spec': {'limits': field}})}'"
    yield PoolChange(words, pod, msgspec.structs.replace(pool, limits={**pool.limits, **higher}), False)


def _other_types(pod: Object, ask: PodAsk, pool: DeclaredPool, offers: Offers) -> Iterator[PoolChange]:
    """The cheapest type that holds the pod, added to the types that the pool lists."""
    lists = [at for at, one in enumerate(pool.requirements) if one.key == karpenter.TYPE_LABEL and one.operator == "In"]
    if len(lists) != 1:
        return
    [at] = lists
    free = msgspec.structs.replace(pool, requirements=pool.requirements[:at] + pool.requirements[at + 1 :])
    for option in offers(free).options:
        admits = filters.check_affinity(ask.info, option.facts) is None
        if admits and not isinstance(hold_pod(option, {}, 0, option.gpus, ask), str):
            listed = pool.requirements[at]
            longer = msgspec.structs.replace(listed, values=(*listed.values, option.machine.name))
            yield PoolChange(
                f"{_patch(pool, 'json')} '{json.dumps([_operation(pool, at, option.machine.name)])}'",
                pod,
                msgspec.structs.replace(pool, requirements=_with(pool.requirements, at, longer)),
                False,
            )
            return


def _operation(pool: DeclaredPool, at: int, value: str) -> dict[str, Any]:
    prefix = "/spec" if pool.kind == karpenter.Provisioner.RESOURCE.kind else "/spec/template/spec"
    return {"op": "add", "path": f"{prefix}/requirements/{at}/values/-", "value": value}


def _with(all_of: tuple[PoolRequirement, ...], at: int, one: PoolRequirement) -> tuple[PoolRequirement, ...]:
    return (*all_of[:at], one, *all_of[at + 1 :])


def _patch(pool: DeclaredPool, form: str) -> str:
    return f"kubectl patch {pool.kind.lower()} {pool.name} --type {form} -p"


def _fewer_gpus(pod: Object, found: PoolOptions) -> Iterator[PoolChange]:
    """As many GPUs as the nodes of the pool have, the most first."""
    asks = request_of(msgspec.convert(pod, Pod)).asks
    if len(asks) != 1 or asks[0].gpus < 2:
        return
    [ask] = asks
    each = WHOLE if ask.dialect == names.VCUDA_CORE else 1
    offered = {option.facts.allocatable.get(ask.dialect, 0) // each for option in found.options}
    for fewer in sorted((number for number in offered if 0 < number < ask.gpus), reverse=True)[:_FEWEST]:
        new = asking(pod, ask, {ask.dialect: str(fewer * each)})
        yield PoolChange(f"ask {fewer} instead of {ask.gpus} GPUs", new, found.pool, True)
