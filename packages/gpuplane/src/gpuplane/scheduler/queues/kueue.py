"""Kueue's objects as queues of the tree, so that users need no second set of objects. Pure.

A Cohort is a queue, a ClusterQueue a queue below its cohort, a LocalQueue a leaf below its ClusterQueue. A field that
the scheduler does not support is a finding with its name, never ignored silently. Both versions of the API are
read: v1beta2, and v1beta1, which spells `cohortName` as `cohort`.

Source: apis/kueue/v1beta1 and v1beta2 of kubernetes-sigs/kueue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.scheduler.queues.tree import (
    RESOURCES,
    UNBOUNDED,
    Bounds,
    Eviction,
    FairQueue,
    QueueFinding,
    QueueMember,
)
from kubekit.api.quantity import Quantity, parse_quantity
from kubekit.errors import InvalidInput
from kubekit.scheduling.selectors import compile_selector

_SCALES: Final[dict[str, tuple[int, int]]] = {
    "cpu": (0, 1000),
    "memory": (1, 1),
    names.GPU_RESOURCE: (2, 100),
    names.ALPHA_GPU: (2, 100),
    names.VCUDA_CORE: (2, 1),
    names.VCUDA_MEMORY: (3, 256),
}
"""Resource -> position in Amounts, and what one of it is there."""
_UNLIKE_KUEUE: Final = {
    "queueingStrategy": "BestEffortFIFO",
    "admissionChecks": None,
    "admissionChecksStrategy": None,
    "admissionScope": None,
    "concurrentAdmissionPolicy": None,
}
"""Fields of a ClusterQueue that are not honoured -> the only value that is; None for no value."""
_FUNGIBILITY: Final = {"whenCanBorrow": ("MayStopSearch", "Borrow"), "whenCanPreempt": ("TryNextFlavor",)}


class KueueObject(msgspec.Struct, frozen=True):
    """An object by its name (of a LocalQueue namespace/name), and its spec."""

    name: str
    spec: Mapping[str, Any]


class KueueQueues(msgspec.Struct, frozen=True):
    """The queues that the objects declare, what is not honoured, and the object of each queue: its kind and name."""

    queues: list[FairQueue]
    findings: list[QueueFinding]
    objects: dict[str, tuple[str, str]]


def cohort_name(name: str) -> str:
    """Return the name of a cohort's queue."""
    return f"cohort/{name}"


class _Quotas(msgspec.Struct, frozen=True):
    """Sums of quotas over flavors; `borrowing` is None of a resource that may be borrowed without end."""

    nominal: list[int | None]
    borrowing: list[int | None]


class KueueReader:
    """Reads all objects at once.

    Args:
        flavors: ResourceFlavors; namespaces: the labels of namespaces by name.
    """

    def __init__(self, flavors: Iterable[KueueObject], namespaces: Mapping[str, Mapping[str, str]]) -> None:
        self._flavors = {flavor.name: flavor.spec for flavor in flavors}
        self._namespaces = namespaces
        self._findings: list[QueueFinding] = []

    def read(
        self, cohorts: Iterable[KueueObject], cluster_queues: Iterable[KueueObject], local_queues: Iterable[KueueObject]
    ) -> KueueQueues:
        declared = {one.name: one.spec for one in cohorts}
        clusters = {one.name: one.spec for one in cluster_queues}
        objects = {cohort_name(name): ("Cohort", name) for name in declared}
        objects |= {name: ("ClusterQueue", name) for name in clusters}
        queues = [self._cluster_queue(name, spec) for name, spec in clusters.items()]
        queues += self._cohorts(declared, queues)
        for local in local_queues:
            made = self._local_queue(local, clusters)
            queues.append(made)
            objects[made.name] = ("LocalQueue", local.name)
        return KueueQueues(queues, self._findings, objects)

    def _find(self, queue: str, message: str) -> None:
        self._findings.append(QueueFinding(queue, message))

    # -- kinds -------------------------------------------------------------------------------------------------------

    def _cluster_queue(self, name: str, spec: Mapping[str, Any]) -> FairQueue:
        cohort = str(spec.get("cohortName") or spec.get("cohort") or "")
        quotas = self._quotas(name, spec)
        preemption = spec.get("preemption") or {}
        for field, only in _UNLIKE_KUEUE.items():
            if spec.get(field) not in (None, only, [], {}):
                self._find(name, f"spec.{field} is not honoured")
        for field, allowed in _FUNGIBILITY.items():
            if (value := (spec.get("flavorFungibility") or {}).get(field)) and value not in allowed:
                self._find(name, f"spec.flavorFungibility.{field} is not honoured")
        if (spec.get("flavorFungibility") or {}).get("preference"):
            self._find(name, "spec.flavorFungibility.preference is not honoured")
        if (preemption.get("borrowWithinCohort") or {}).get("policy", "Never") != "Never":
            self._find(name, "spec.preemption.borrowWithinCohort is not honoured")
        inside = preemption.get("withinClusterQueue") or "Never"
        if inside == "LowerOrNewerEqualPriority":
            self._find(name, "spec.preemption.withinClusterQueue: of pods of equal priority none is evicted")
            inside = "LowerPriority"
        nominal = _bounds(quotas.nominal)
        return FairQueue(
            name,
            parent=cohort_name(cohort) if cohort else "",
            weight=self._weight(name, spec),
            guaranteed=nominal,
            limit=_plus(nominal, quotas.borrowing) if cohort else nominal,
            stopped=self._stopped(name, spec),
            inside=Eviction(inside),
            reclaim=Eviction(preemption.get("reclaimWithinCohort") or "Never"),
        )

    def _cohorts(self, declared: Mapping[str, Mapping[str, Any]], clusters: Iterable[FairQueue]) -> Iterator[FairQueue]:
        """Yield the queues of cohorts, those too that are only named. Their quota comes on top of their members'."""
        members: dict[str, list[Bounds]] = {}
        for queue in clusters:
            if queue.parent:
                members.setdefault(queue.parent, []).append(queue.guaranteed)
        parents = {cohort_name(name): str(spec.get("parentName") or "") for name, spec in declared.items()}
        names_of_all = {*parents, *members, *(cohort_name(parent) for parent in parents.values() if parent)}
        quotas = {name: self._quotas(name, declared.get(name.partition("/")[2], {})) for name in sorted(names_of_all)}
        children: dict[str, list[str]] = {}
        for name, parent in parents.items():
            if parent:
                children.setdefault(cohort_name(parent), []).append(name)

        def total(name: str, above: frozenset[str]) -> Bounds:
            """Return what the cohort and all below it have."""
            parts = [_bounds(quotas[name].nominal), *members.get(name, ())]
            parts += [total(child, above | {name}) for child in children.get(name, ()) if child not in above | {name}]
            return _sum(parts)

        for name in sorted(names_of_all):
            parent, all_of_it = parents.get(name, ""), total(name, frozenset())
            spec = declared.get(name.partition("/")[2], {})
            yield FairQueue(
                name,
                parent=cohort_name(parent) if parent else "",
                weight=self._weight(name, spec),
                guaranteed=all_of_it,
                limit=_plus(all_of_it, quotas[name].borrowing) if parent else all_of_it,
            )

    def _local_queue(self, local: KueueObject, clusters: Mapping[str, Mapping[str, Any]]) -> FairQueue:
        namespace, _, name = local.name.partition("/")
        cluster = str(local.spec.get("clusterQueue") or "")
        stopped = self._stopped(local.name, local.spec)
        if cluster not in clusters:
            stopped = f"its ClusterQueue {cluster or '(none)'} does not exist"
        elif not self._is_selected(cluster, clusters[cluster], namespace):
            stopped = f"the namespaceSelector of ClusterQueue {cluster} leaves namespace {namespace} out"
        return FairQueue(
            local.name,
            parent=cluster if cluster in clusters else "",
            weight=self._weight(local.name, local.spec),
            members=(QueueMember(namespace, name),),
            stopped=stopped,
            is_part=cluster in clusters,
        )

    def _is_selected(self, queue: str, spec: Mapping[str, Any], namespace: str) -> bool:
        selector = spec.get("namespaceSelector")
        if selector is None:
            return False
        try:
            compiled = compile_selector(selector)
        except (InvalidInput, KeyError, TypeError, ValueError) as error:
            self._find(queue, f"spec.namespaceSelector cannot be read: {error}")
            return False
        return compiled is not None and compiled.matches(self._namespaces.get(namespace, {}))

    # -- parts -------------------------------------------------------------------------------------------------------

    def _stopped(self, name: str, spec: Mapping[str, Any]) -> str:
        policy = spec.get("stopPolicy") or "None"
        if policy == "HoldAndDrain":
            self._find(name, "spec.stopPolicy: no pod starts, and pods that run are not evicted")
        return "" if policy == "None" else f"its stopPolicy is {policy}"

    def _weight(self, name: str, spec: Mapping[str, Any]) -> float:
        weight = (spec.get("fairSharing") or {}).get("weight")
        if weight is None:
            return 1.0
        try:
            return max(0.0, float(parse_quantity(weight)))
        except InvalidInput as error:
            self._find(name, f"spec.fairSharing.weight cannot be read: {error}")
            return 1.0

    def _quotas(self, name: str, spec: Mapping[str, Any]) -> _Quotas:
        """Return the quotas of a ClusterQueue or a Cohort, added up over flavors."""
        nominal: list[int | None] = list(UNBOUNDED)
        borrowing: list[int | None] = list(UNBOUNDED)
        unlimited: set[int] = set()
        flavors: dict[str, int] = {}
        for group in spec.get("resourceGroups") or ():
            for flavor in group.get("flavors") or ():
                self._look_at_flavor(name, str(flavor.get("name")))
                for resource in flavor.get("resources") or ():
                    kind = str(resource.get("name"))
                    flavors[kind] = flavors.get(kind, 0) + 1
                    if kind not in _SCALES:
                        self._find(name, f"the quota of {kind} is not honoured")
                        continue
                    if resource.get("lendingLimit") is not None:
                        self._find(name, f"lendingLimit of {kind} is not honoured: all that is unused is lent")
                    at, scale = _SCALES[kind]
                    try:
                        nominal[at] = (nominal[at] or 0) + _amount(resource.get("nominalQuota", 0), scale)
                        if resource.get("borrowingLimit") is None:
                            unlimited.add(at)
                        else:
                            borrowing[at] = (borrowing[at] or 0) + _amount(resource["borrowingLimit"], scale)
                    except InvalidInput as error:
                        self._find(name, f"the quota of {kind} cannot be read: {error}")
        for kind, count in flavors.items():
            if count > 1:
                self._find(name, f"the quotas of {count} flavors of {kind} count together, not each by itself")
        for at in unlimited:
            borrowing[at] = None
        return _Quotas(nominal, borrowing)

    def _look_at_flavor(self, queue: str, name: str) -> None:
        flavor = self._flavors.get(name)
        if flavor is None:
            self._find(queue, f"ResourceFlavor {name} does not exist; its quota counts nevertheless")
            return
        for field in ("nodeLabels", "nodeTaints", "tolerations", "topologyName"):
            if flavor.get(field):
                self._find(queue, f"spec.{field} of ResourceFlavor {name} is not honoured: pods may use any node")


def _amount(value: Quantity, scale: int) -> int:
    return int(parse_quantity(value) * scale)


def _bounds(amounts: list[int | None]) -> Bounds:
    cpu, memory, gpus, gpu_memory = amounts
    return cpu, memory, gpus, gpu_memory


def _plus(bounds: Bounds, more: list[int | None]) -> Bounds:
    """Return the sums of resources that both name."""
    sums: list[int | None] = []
    for one, other in zip(bounds, more, strict=True):
        sums.append(None if one is None or other is None else one + other)
    return _bounds(sums)


def _sum(parts: Iterable[Bounds]) -> Bounds:
    """Return the sums of resources that at least one of the parts names."""
    listed = list(parts)
    sums: list[int | None] = []
    for at in range(len(RESOURCES)):
        named = [amount for part in listed if (amount := part[at]) is not None]
        sums.append(sum(named) if named else None)
    return _bounds(sums)
