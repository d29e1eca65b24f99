"""Decides which node gets a DaemonSet's pod, which pod is deleted, and how a rollout proceeds. Pure, on plain data.

Rules as in kube-controller-manager's daemon controller: a DaemonSet looks at node selectors, affinity and taints only
(never at room); a NoSchedule taint keeps a new pod off, and only a NoExecute taint makes a running one go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from kubekit.scheduling.filters import UNSCHEDULABLE_TAINT, node_matches, untolerated
from kubekit.scheduling.podinfo import (
    Affinity,
    NodeFacts,
    PodToleration,
    compile_affinity,
    compile_tolerations,
)
from kubekit.scheduling.selectors import Selector, compile_selector
from tinykube.controllers.templates import copied, template_hash

Object = Mapping[str, Any]
_ALWAYS: Final = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
_NETWORK: Final = ("node.kubernetes.io/network-unavailable", "NoSchedule")


class DaemonDecision(msgspec.Struct, frozen=True):
    """`run`: a node without the pod gets one. `keep`: a pod that is there may stay."""

    run: bool
    keep: bool


class PodFacts(msgspec.Struct, frozen=True):
    """A DaemonSet's pod as these decisions see it."""

    name: str
    node: str
    created: str
    updated: bool
    ready: bool
    available: bool
    failed: bool = False
    finished: bool = False
    terminating: bool = False


class NodeActions(msgspec.Struct, frozen=True):
    """The actions on one node: make a pod, delete some; `retried` are failed ones, to be deleted with a delay."""

    create: bool = False
    delete: tuple[str, ...] = ()
    retried: tuple[str, ...] = ()


class Counts(msgspec.Struct, frozen=True):
    """One node's part of a DaemonSet's status; sums are componentwise."""

    desired: int = 0
    current: int = 0
    misscheduled: int = 0
    ready: int = 0
    available: int = 0
    updated: int = 0


class CompiledDaemonSet:
    """A compiled DaemonSet: the nodes that it selects, and the pod that it makes. One per generation of the object."""

    def __init__(self, obj: Object) -> None:
        spec = obj["spec"]
        self.obj = obj
        self.template: Object = spec["template"]
        self.selector: Selector = compile_selector(spec.get("selector")) or Selector()
        self.hash = template_hash(self.template)
        self.min_ready_seconds: int = spec.get("minReadySeconds") or 0
        strategy = spec.get("updateStrategy") or {}
        self.rolling = strategy.get("type", "RollingUpdate") == "RollingUpdate"
        rolling = strategy.get("rollingUpdate") or {}
        self.max_unavailable: int | str = rolling.get("maxUnavailable", 1)
        self.max_surge: int | str = rolling.get("maxSurge", 0) if self.rolling else 0
        pod_spec = self.template.get("spec") or {}
        labels = (self.template.get("metadata") or {}).get("labels") or {}
        self._node_name: str = pod_spec.get("nodeName") or ""
        self._affinity: Affinity = compile_affinity(pod_spec, obj["metadata"]["namespace"], labels)
        self._extra = _tolerations(pod_spec)
        self._tolerations: tuple[PodToleration, ...] = compile_tolerations(
            [*(pod_spec.get("tolerations") or ()), *self._extra]
        )

    @property
    def surges(self) -> bool:
        return self.max_surge not in (0, "0%")

    def wants(self, node: NodeFacts) -> DaemonDecision:
        if self._node_name and self._node_name != node.name:
            return DaemonDecision(False, False)
        if not node_matches(self._affinity, node.name, node.labels):
            return DaemonDecision(False, False)
        taints = node.taints
        if node.unschedulable:
            taints = (*taints, UNSCHEDULABLE_TAINT)
        run = untolerated(taints, self._tolerations) is None
        return DaemonDecision(run, run or untolerated(taints, self._tolerations, ("NoExecute",)) is None)

    def pod_spec(self, node: str) -> dict[str, Any]:
        """The template's spec, pinned to a node and with the tolerations that every daemon has."""
        spec: dict[str, Any] = copied(self.template.get("spec") or {})
        spec["tolerations"] = [*(spec.get("tolerations") or ()), *self._extra]
        spec["affinity"] = pinned(spec.get("affinity"), node)
        return spec


def _tolerations(spec: Object) -> list[dict[str, str]]:
    wanted = [*_ALWAYS, _NETWORK] if spec.get("hostNetwork") else list(_ALWAYS)
    made = [{"key": key, "operator": "Exists", "effect": effect} for key, effect in wanted]
    there = spec.get("tolerations") or ()
    return [toleration for toleration in made if toleration not in there]


def pinned(affinity: Object | None, node: str) -> dict[str, Any]:
    """The affinity with every required node term narrowed to one node, by its name."""
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    answer: dict[str, Any] = dict(affinity or {})
    of_node = dict(answer.get("nodeAffinity") or {})
    # As in Kubernetes: whatever was required is replaced, since the controller has already checked it.
    of_node["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [{"matchFields": [here]}]}
    answer["nodeAffinity"] = of_node
    return answer


def place(wanted: DaemonDecision, pods: Sequence[PodFacts], surges: bool) -> NodeActions:
    """Decide the actions on one node. A pod that is leaving still occupies its place."""
    if not wanted.keep:
        return NodeActions(delete=tuple(p.name for p in pods if not p.terminating))
    if not pods:
        return NodeActions(create=wanted.run)
    failed = tuple(p.name for p in pods if p.failed and not p.terminating)
    # Succeeded is as wrong as failed for a daemon, and replaced the same way.
    ended = tuple(p.name for p in pods if p.finished and not p.failed and not p.terminating)
    running = sorted((p for p in pods if not p.finished and not p.terminating), key=lambda p: (p.created, p.name))
    extra: list[str] = []
    if len(running) > 1:
        new = [p for p in running if p.updated]
        old = [p for p in running if not p.updated]
        if surges and new and old:
            # During a surge the old pod stays until the new one is available.
            extra = [p.name for p in new[1:]]
            extra += [p.name for p in (old if new[0].available else old[1:])]
        else:
            extra = [p.name for p in running[1:]]
    return NodeActions(delete=(*ended, *extra), retried=failed)


def count(wanted: DaemonDecision, pods: Iterable[PodFacts]) -> Counts:
    """One node's part of the status; of several pods the oldest that is not leaving speaks."""
    present = sorted((p for p in pods if not p.terminating), key=lambda p: (p.created, p.name))
    if not wanted.run:
        return Counts(misscheduled=int(bool(present)))
    if not present:
        return Counts(desired=1)
    oldest = present[0]
    return Counts(
        desired=1,
        current=1,
        ready=int(oldest.ready),
        available=int(oldest.available),
        updated=int(oldest.updated),
    )


def roll(nodes: Iterable[Sequence[PodFacts]], max_unavailable: int) -> tuple[str, ...]:
    """Old pods to delete now. `nodes`: the pods of each node that should run one (also of those that have none).

    An old pod that is not available goes at once; of the others as many as `max_unavailable` still allows.
    """
    unavailable = 0
    at_once: list[str] = []
    candidates: list[str] = []
    for pods in nodes:
        present = [p for p in pods if not p.terminating]
        new = [p for p in present if p.updated]
        if not present:
            unavailable += 1
        elif new:
            unavailable += not any(p.available for p in new)
        elif not present[0].available:
            unavailable += 1
            at_once.append(present[0].name)
        else:
            candidates.append(present[0].name)
    return (*at_once, *candidates[: max(0, max_unavailable - unavailable)])


def surge(nodes: Iterable[tuple[str, Sequence[PodFacts]]], max_surge: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return, for maxSurge, (nodes that get a new pod next to the old one, old pods to delete: the new one is up)."""
    going = 0
    candidates: list[str] = []
    replaced: list[str] = []
    at_once: list[str] = []
    for node, pods in nodes:
        present = [p for p in pods if not p.terminating]
        new, old = [p for p in present if p.updated], [p for p in present if not p.updated]
        if new and old:
            if any(p.available for p in new):
                replaced += [p.name for p in old]
            else:
                going += 1
        elif old:
            (candidates if old[0].available else at_once).append(node)
    return (*at_once, *candidates[: max(0, max_surge - going - len(at_once))]), tuple(replaced)
