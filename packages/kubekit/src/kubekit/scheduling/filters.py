"""May this pod go to this node, and if not, why: the filters of kube-scheduler, in its order, with its words.

Each filter is a function of plain data. The first one that fails answers; only resources give several reasons at once.
`resolvable` says whether taking pods off the node could help (it decides whether preemption looks at the node).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from kubekit.scheduling.podinfo import Affinity, NodeFacts, NodeTaint, PodInfo, PodToleration, Requests
from kubekit.scheduling.selectors import NodeTerm

UNSCHEDULABLE_TAINT: Final = NodeTaint("node.kubernetes.io/unschedulable", "", "NoSchedule")
HARD_EFFECTS: Final = ("NoSchedule", "NoExecute")
ANY_ADDRESS: Final = "0.0.0.0"
HostPort = tuple[str, str, int]  # address, protocol, number


class Failure(msgspec.Struct, frozen=True):
    """Why a node is out. `plugin` is kube-scheduler's name of the filter; it decides what may wake the pod."""

    plugin: str
    reasons: tuple[str, ...]
    resolvable: bool = False


def tolerates(tolerations: Iterable[PodToleration], taint: NodeTaint) -> bool:
    return any(toleration.tolerates(taint) for toleration in tolerations)


def untolerated(
    taints: Iterable[NodeTaint], tolerations: tuple[PodToleration, ...], effects: tuple[str, ...] = HARD_EFFECTS
) -> NodeTaint | None:
    """The first taint of these effects that no toleration covers."""
    for taint in taints:
        if taint.effect in effects and not tolerates(tolerations, taint):
            return taint
    return None


def any_term_matches(terms: Iterable[NodeTerm], name: str, labels: Mapping[str, str]) -> bool:
    return any(term.matches(name, labels) for term in terms)


def node_matches(affinity: Affinity, name: str, labels: Mapping[str, str]) -> bool:
    """`nodeSelector` and required node affinity together."""
    if not all(requirement.matches(labels) for requirement in affinity.node_selector):
        return False
    return affinity.node_required is None or any_term_matches(affinity.node_required, name, labels)


def check_unschedulable(pod: PodInfo, facts: NodeFacts) -> Failure | None:
    if facts.unschedulable and not tolerates(pod.tolerations, UNSCHEDULABLE_TAINT):
        return Failure("NodeUnschedulable", ("node(s) were unschedulable",))
    return None


def check_taints(pod: PodInfo, facts: NodeFacts) -> Failure | None:
    taint = untolerated(facts.taints, pod.tolerations)
    if taint is None:
        return None
    return Failure("TaintToleration", ("node(s) had untolerated taint(s)",))


def check_affinity(pod: PodInfo, facts: NodeFacts) -> Failure | None:
    if node_matches(pod.affinity, facts.name, facts.labels):
        return None
    return Failure("NodeAffinity", ("node(s) didn't match Pod's node affinity/selector",))


def check_ports(wanted: Iterable[HostPort], used: Iterable[HostPort]) -> Failure | None:
    """`used`: host ports taken on the node; an address of 0.0.0.0 on either side conflicts with every address."""
    for (ip, protocol, port), (used_ip, used_protocol, used_port) in itertools.product(wanted, used):
        same = used_protocol == protocol and used_port == port
        if same and (ip == used_ip or ANY_ADDRESS in (ip, used_ip)):
            return Failure(
                "NodePorts", ("node(s) didn't have free ports for the requested pod ports",), resolvable=True
            )
    return None


def check_resources(
    pod: PodInfo, allocatable: Requests, requested: Requests, pods: int, ignored: frozenset[str]
) -> Failure | None:
    """`pods`: how many are on the node. `ignored`: resources that an extender looks after."""
    reasons: list[str] = []
    resolvable = True
    if pods + 1 > allocatable.get("pods", 0):
        reasons.append("Too many pods")
    for name, amount in pod.requests.items():
        if not amount or name in ignored:
            continue
        capacity = allocatable.get(name, 0)
        if amount > capacity - requested.get(name, 0):
            reasons.append(f"Insufficient {name}")
            resolvable = resolvable and amount <= capacity
    return Failure("NodeResourcesFit", tuple(reasons), resolvable) if reasons else None
