"""The scheduler's view of a pod and of a node, compiled from their objects once.

Requests are integers: `cpu` in thousandths, everything else in its base unit (bytes, pieces). They are counted by
`api.pod_requests`.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING
from functools import lru_cache
from typing import Any, Final

import msgspec

from kubekit.api.pod_requests import read_amounts
from kubekit.api.quantity import MOST, parse_quantity, whole
from kubekit.scheduling.devices.facts import PodClaim, compile_pod_claims
from kubekit.scheduling.resizes import with_resizes
from kubekit.scheduling.selectors import (
    EVERYTHING,
    NodeTerm,
    Requirement,
    Selector,
    compile_node_term,
    compile_node_terms,
    compile_selector,
    equalities,
)
from kubekit.scheduling.volumes.facts import PodVolume, compile_volumes

Requests = dict[str, int]
DEFAULT_SCHEDULER: Final = "default-scheduler"
# The request that scores (not filters) assume for a container without one, as in kube-scheduler.
ASSUMED: Final[Requests] = {"cpu": 100, "memory": 200 * 1024 * 1024}


class PodToleration(msgspec.Struct, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: NodeTaint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return bool(self.key) and self.value == taint.value


class NodeTaint(msgspec.Struct, frozen=True):
    key: str
    value: str
    effect: str


class PodTerm(msgspec.Struct, frozen=True):
    """A pod (anti)affinity term. `namespaces` are names; `namespace_selector` (None: names only) adds by label."""

    selector: Selector | None
    topology_key: str
    namespaces: tuple[str, ...] = ()
    namespace_selector: Selector | None = None

    def selects(self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]) -> bool:
        if self.selector is None or not self.selector.matches(labels):
            return False
        if namespace in self.namespaces:
            return True
        return self.namespace_selector is not None and self.namespace_selector.matches(namespace_labels)


class SpreadConstraint(msgspec.Struct, frozen=True):
    """A topology spread constraint; `term` counts the pods it is about. `selects_pod`: its own pod is one of them."""

    max_skew: int
    topology_key: str
    hard: bool
    term: PodTerm
    selects_pod: bool
    min_domains: int = 1
    honor_affinity: bool = True
    honor_taints: bool = False


class Affinity(msgspec.Struct, frozen=True):
    """Everything of `spec.affinity` and `spec.nodeSelector`. `pinned`: the only node it may go to (metadata.name).

    `named` are the nodes that it may go to, where its terms name several.
    """

    node_selector: tuple[Requirement, ...] = ()
    node_required: tuple[NodeTerm, ...] | None = None
    node_preferred: tuple[tuple[int, NodeTerm], ...] = ()
    pod_required: tuple[PodTerm, ...] = ()
    pod_preferred: tuple[tuple[int, PodTerm], ...] = ()
    anti_required: tuple[PodTerm, ...] = ()
    anti_preferred: tuple[tuple[int, PodTerm], ...] = ()
    pinned: str = ""
    named: frozenset[str] = frozenset()


NO_AFFINITY: Final = Affinity()


class PodInfo(msgspec.Struct, frozen=True, gc=False):
    """A pod as the scheduler sees it. `ports`: (host IP, protocol, host port). `volumes`: those that restrict it.

    `claims` are its claims of devices.
    """

    namespace: str
    name: str
    uid: str
    labels: dict[str, str]
    requests: Requests
    scored_cpu_milli: int
    scored_memory_bytes: int
    priority: int = 0
    node_name: str = ""
    nominated: str = ""
    affinity: Affinity = NO_AFFINITY
    tolerations: tuple[PodToleration, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    ports: tuple[tuple[str, str, int], ...] = ()
    images: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    scheduler_name: str = DEFAULT_SCHEDULER
    may_preempt: bool = True
    terminating: bool = False
    created: str = ""
    volumes: tuple[PodVolume, ...] = ()
    claims: tuple[PodClaim, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class NodeFacts(msgspec.Struct, frozen=True, gc=False):
    """A node as the scheduler sees it."""

    name: str
    labels: dict[str, str]
    allocatable: Requests
    taints: tuple[NodeTaint, ...] = ()
    unschedulable: bool = False
    images: tuple[tuple[str, int], ...] = ()


@lru_cache(maxsize=4096)
def _parse(resource: str, quantity: str) -> int:
    if resource == "cpu":
        return min(MOST, int((parse_quantity(quantity) * 1000).to_integral_value(rounding=ROUND_CEILING)))
    return whole(quantity)


def _amount(resource: str, quantity: Any) -> int:
    return _parse(resource, str(quantity))


def amounts(raw: Mapping[str, Any] | None) -> Requests:
    """A resource list as integers. Raises InvalidInput."""
    return {name: _amount(name, value) for name, value in (raw or {}).items()}


def _pod_term(raw: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> PodTerm:
    selector = compile_selector(raw.get("labelSelector"))
    if selector is not None:
        selector = selector.extended(
            Requirement(key, "In", (labels[key],)) for key in raw.get("matchLabelKeys") or () if key in labels
        ).extended(
            Requirement(key, "NotIn", (labels[key],)) for key in raw.get("mismatchLabelKeys") or () if key in labels
        )
    namespaces = tuple(raw.get("namespaces") or ())
    by_label = compile_selector(raw.get("namespaceSelector"))
    if not namespaces and by_label is None:
        namespaces = (namespace,)
    return PodTerm(selector, raw.get("topologyKey", ""), namespaces, by_label)


def _named(required: tuple[NodeTerm, ...] | None) -> frozenset[str]:
    """Return the nodes that all terms together name; none if a term names no node."""
    found: set[str] = set()
    for term in required or ():
        listed = [set(field.values) for field in term.fields if field.operator == "In"]
        if not listed:
            return frozenset()
        found |= set.intersection(*listed)
    return frozenset(found)


def compile_affinity(spec: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> Affinity:
    raw = spec.get("affinity")
    node_selector = equalities(spec.get("nodeSelector"))
    if not raw:
        return Affinity(node_selector) if node_selector else NO_AFFINITY
    node = raw.get("nodeAffinity") or {}
    pod = raw.get("podAffinity") or {}
    anti = raw.get("podAntiAffinity") or {}
    required, preferred = (
        "requiredDuringSchedulingIgnoredDuringExecution",
        "preferredDuringSchedulingIgnoredDuringExecution",
    )
    node_required = compile_node_terms(node.get(required))
    named = _named(node_required)

    def hard(source: Mapping[str, Any]) -> tuple[PodTerm, ...]:
        return tuple(_pod_term(term, namespace, labels) for term in source.get(required) or ())

    def soft(source: Mapping[str, Any]) -> tuple[tuple[int, PodTerm], ...]:
        return tuple(
            (term["weight"], _pod_term(term["podAffinityTerm"], namespace, labels))
            for term in source.get(preferred) or ()
        )

    return Affinity(
        node_selector=node_selector,
        node_required=node_required,
        node_preferred=tuple(
            (term["weight"], compile_node_term(term["preference"])) for term in node.get(preferred) or ()
        ),
        pod_required=hard(pod),
        pod_preferred=soft(pod),
        anti_required=hard(anti),
        anti_preferred=soft(anti),
        pinned=next(iter(named)) if len(named) == 1 else "",
        named=named if len(named) > 1 else frozenset(),
    )


# Thousands of pods of one DaemonSet tolerate the same: they share what says so.
_toleration = lru_cache(maxsize=4096)(PodToleration)


def compile_tolerations(raw: Any) -> tuple[PodToleration, ...]:
    return tuple(
        _toleration(t.get("key", ""), t.get("operator") or "Equal", t.get("value", ""), t.get("effect", ""))
        for t in raw or ()
    )


def compile_taints(raw: Any) -> tuple[NodeTaint, ...]:
    return tuple(NodeTaint(t["key"], t.get("value", ""), t["effect"]) for t in raw or ())


def _spread(raw: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> SpreadConstraint:
    counted = {"labelSelector": raw.get("labelSelector"), "matchLabelKeys": raw.get("matchLabelKeys")}
    term = _pod_term({**counted, "topologyKey": raw["topologyKey"]}, namespace, labels)
    selects_pod = term.selects(namespace, labels, {})
    if term.selector == EVERYTHING:  # NB: kube-scheduler counts no pod then, though it selects the pod itself
        term = msgspec.structs.replace(term, selector=None)
    return SpreadConstraint(
        max_skew=raw["maxSkew"],
        topology_key=raw["topologyKey"],
        hard=raw.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule",
        term=term,
        selects_pod=selects_pod,
        min_domains=raw.get("minDomains") or 1,
        honor_affinity=raw.get("nodeAffinityPolicy", "Honor") == "Honor",
        honor_taints=raw.get("nodeTaintsPolicy", "Ignore") == "Honor",
    )


_LONGEST_KEY, _MOST_SHAPES = 1024, 4096
_shapes: dict[bytes, tuple[Requests, Requests]] = {}


def _requested(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[Requests, Requests]:
    """Return what a pod requests, and what it is scored by. Raises InvalidInput.

    Pods of one workload request the same, so each set of requests is computed once.
    """
    spec = with_resizes(spec, status)
    own = [(one.get("resources"), one.get("restartPolicy")) for one in spec.get("containers") or ()]
    init = [(one.get("resources"), one.get("restartPolicy")) for one in spec.get("initContainers") or ()]
    key = msgspec.msgpack.encode((own, init, spec.get("resources"), spec.get("overhead")))
    found = _shapes.get(key)
    if found is None:
        asked = read_amounts(spec, "requests", _amount)
        found = _bounded(asked.requests()), _bounded(asked.requests(ASSUMED))
        if len(key) <= _LONGEST_KEY:  # any tenant can make pods with thousands of containers
            if len(_shapes) >= _MOST_SHAPES:
                _shapes.clear()
            _shapes[key] = found
    return found


def _sidecars(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the init containers that run next to the main containers: their host ports are taken as long."""
    return [one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"]


def _bounded(requests: Requests) -> Requests:
    """Return the sums of containers as amounts of 64 bits, which a pod may exceed by valid quantities."""
    return {name: max(-MOST, min(amount, MOST)) for name, amount in requests.items()}


def compile_pod(obj: Mapping[str, Any]) -> PodInfo:
    """Read a pod object. Raises InvalidInput for an invalid quantity."""
    meta, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    namespace, labels = meta["namespace"], meta.get("labels") or {}
    containers = spec.get("containers") or ()
    requests, scored = _requested(spec, status)
    return PodInfo(
        namespace=namespace,
        name=meta["name"],
        uid=meta.get("uid", ""),
        labels=labels,
        requests=requests,
        scored_cpu_milli=scored.get("cpu", 0),
        scored_memory_bytes=scored.get("memory", 0),
        priority=spec.get("priority") or 0,
        node_name=spec.get("nodeName") or "",
        nominated=status.get("nominatedNodeName") or "",
        affinity=compile_affinity(spec, namespace, labels),
        tolerations=compile_tolerations(spec.get("tolerations")),
        spread=tuple(_spread(c, namespace, labels) for c in spec.get("topologySpreadConstraints") or ()),
        ports=tuple(
            (p.get("hostIP") or "0.0.0.0", p.get("protocol") or "TCP", p["hostPort"])
            for c in (*containers, *_sidecars(spec))
            for p in c.get("ports") or ()
            if p.get("hostPort")
        ),
        images=tuple(c.get("image", "") for c in containers),
        gates=tuple(g["name"] for g in spec.get("schedulingGates") or ()),
        scheduler_name=spec.get("schedulerName") or DEFAULT_SCHEDULER,
        may_preempt=spec.get("preemptionPolicy") != "Never",
        terminating="deletionTimestamp" in meta,
        created=meta.get("creationTimestamp") or "",
        volumes=compile_volumes(meta["name"], spec) if spec.get("volumes") else (),
        claims=compile_pod_claims(spec, status) if spec.get("resourceClaims") else (),
    )


def compile_node(obj: Mapping[str, Any]) -> NodeFacts:
    """Read a node object. Raises InvalidInput for an invalid quantity."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    return NodeFacts(
        name=meta["name"],
        labels=meta.get("labels") or {},
        allocatable=amounts(status.get("allocatable")),
        taints=compile_taints(spec.get("taints")),
        unschedulable=bool(spec.get("unschedulable")),
        images=tuple(
            (name, image.get("sizeBytes") or 0)
            for image in status.get("images") or ()
            for name in image.get("names") or ()
        ),
    )
