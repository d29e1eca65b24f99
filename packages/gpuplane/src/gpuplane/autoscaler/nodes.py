"""Nodes of the cluster, and claims on their way to one, as places for pods that wait. Pure.

A node that is not initialised yet counts as what it will be: ephemeral taints and startup taints go, and resources that
it does not report yet are those that were predicted when it was bought.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.api import karpenter
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.nodeclaim import INITIALIZED, UNREGISTERED_TAINT, NodeClaim
from gpuplane.api.offers import counted_by_scheduler
from gpuplane.autoscaler.existing import ExistingNode
from gpuplane.autoscaler.observed import DaemonView, PodView
from gpuplane.autoscaler.options import NodeOption, PoolOptions, admits_pod
from gpuplane.autoscaler.overhead import DISK, UNKNOWN_DISK
from gpuplane.autoscaler.requirements import admits_labels, pool_conditions
from gpuplane.autoscaler.volume_limits import UNLIMITED, VolumeRoom
from gpuplane.sharing.ledger import Ledger
from gpuplane.sharing.node import NodeState, gpus_of
from kubekit.api.core import Node, Taint
from kubekit.api.meta import Condition
from kubekit.scheduling.podinfo import NodeFacts, NodeTaint, Requests, amounts

_PLACE: Final[tuple[str, ...]] = (karpenter.TYPE_LABEL, karpenter.ZONE_LABEL, karpenter.CAPACITY_TYPE_LABEL)
# Taints that go by themselves before a node is initialised; a prefix ends with a slash.
EPHEMERAL: Final = (
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.cloudprovider.kubernetes.io/uninitialized",
    "readiness.k8s.io/",
    UNREGISTERED_TAINT,
    names.NOT_READY_TAINT,
)


def is_true(conditions: Iterable[Condition], name: str) -> bool:
    """Return whether a condition is there and True."""
    return any(one.type == name and one.status == "True" for one in conditions)


def is_ephemeral(taint: Taint) -> bool:
    """Return whether a taint goes by itself while a node joins."""
    return any(taint.key == key or (key.endswith("/") and taint.key.startswith(key)) for key in EPHEMERAL)


class OptionIndex:
    """The options of each pool by type, zone and capacity type: a cluster has many launched claims of few kinds."""

    def __init__(self, offers: Iterable[PoolOptions]) -> None:
        self._pools = {found.pool.name: found for found in offers}
        self._launched: dict[tuple[str, ...], list[NodeOption]] = {}
        for found in self._pools.values():
            for option in found.options:
                place = (found.pool.name, option.machine.name, option.zone, option.capacity_type)
                self._launched.setdefault(place, []).append(option)

    def of(self, claim: NodeClaim) -> tuple[NodeOption, ...]:
        """Return the nodes that a claim may become, as `claim_options`."""
        labels = claim.metadata.labels
        pool = labels.get(karpenter.POOL_LABEL, "")
        found = self._pools.get(pool)
        place = [labels.get(key, "") for key in _PLACE]
        if found is None or not all(place):
            return claim_options(claim, found)
        launched = self._launched.get((pool, *place), ())
        return claim_options(claim, msgspec.structs.replace(found, options=tuple(launched)))


def claim_options(claim: NodeClaim, found: PoolOptions | None) -> tuple[NodeOption, ...]:
    """Return the nodes that a claim may become, the cheapest first: its requirements hold, and its requests fit.

    The labels of a launched claim leave its own type, zone and capacity type only.
    """
    if found is None:
        return ()
    labels = {key: claim.metadata.labels[key] for key in _PLACE if key in claim.metadata.labels}
    conditions = pool_conditions(claim.spec.requirements, labels)
    requests = amounts(claim.spec.resources.requests)
    requests.pop("pods", None)
    return tuple(
        option
        for option in found.options
        if admits_labels(conditions, option.facts.labels)
        and (labels or all(amount <= option.free.get(name, 0) for name, amount in requests.items()))
    )


def node_of_claim(
    claim: NodeClaim,
    node: Node | None,
    gpunode: GPUNode | None,
    pods: Sequence[PodView],
    daemons: Iterable[DaemonView],
    options: Sequence[NodeOption],
    volumes: VolumeRoom = UNLIMITED,
) -> ExistingNode:
    """Return the node that a claim has, or will have.

    Args:
        options: those of `claim_options`; the first counts.
        volumes: what it can attach next to those of `pods`.
    """
    option = options[0] if options else None
    initialized = node is not None and is_true(claim.status.conditions, INITIALIZED)
    predicted = amounts(claim.status.allocatable) or (option.facts.allocatable if option is not None else {})
    if node is None:
        labels = {**(option.facts.labels if option is not None else {}), **claim.metadata.labels}
        taints = tuple(NodeTaint(taint.key, taint.value, taint.effect) for taint in claim.spec.taints)
        facts = NodeFacts(claim.metadata.name, labels, {DISK: UNKNOWN_DISK, **predicted}, taints)
    else:
        facts = _facts(node)
        if not initialized:
            facts = _as_it_will_be(facts, node, claim, predicted)
    state = _gpu_state(node, gpunode, pods) if node is not None else None
    if state is None and not initialized and option is not None:
        state = option.gpus
    return ExistingNode(
        name=facts.name,
        pool=claim.metadata.labels.get(karpenter.POOL_LABEL, ""),
        facts=facts,
        free=_free(facts, pods, daemons),
        gpus=state,
        price=option.price if option is not None else 0.0,
        initialized=initialized,
        pods=tuple(pod.info for pod in pods if pod.info is not None),
        volumes=volumes,
    )


def node_without_claim(
    node: Node,
    gpunode: GPUNode | None,
    pods: Sequence[PodView],
    daemons: Iterable[DaemonView],
    volumes: VolumeRoom = UNLIMITED,
) -> ExistingNode:
    """Return a node that no pool made."""
    facts = _facts(node)
    infos = tuple(pod.info for pod in pods if pod.info is not None)
    free, gpus = _free(facts, pods, daemons), _gpu_state(node, gpunode, pods)
    return ExistingNode(facts.name, "", facts, free, gpus, pods=infos, volumes=volumes)


def _facts(node: Node) -> NodeFacts:
    return NodeFacts(
        name=node.metadata.name,
        labels=node.metadata.labels,
        allocatable={DISK: UNKNOWN_DISK, **amounts(node.status.allocatable)},
        taints=tuple(NodeTaint(taint.key, taint.value, taint.effect) for taint in node.spec.taints),
        unschedulable=node.spec.unschedulable,
    )


def _as_it_will_be(facts: NodeFacts, node: Node, claim: NodeClaim, predicted: Requests) -> NodeFacts:
    startup = {(taint.key, taint.effect) for taint in claim.spec.startup_taints}
    kept = [taint for taint in node.spec.taints if not is_ephemeral(taint) and (taint.key, taint.effect) not in startup]
    missing = [
        taint for taint in claim.spec.taints if (taint.key, taint.effect) not in {(t.key, t.effect) for t in kept}
    ]
    allocatable = dict(facts.allocatable)
    for name, amount in predicted.items():
        if not allocatable.get(name):
            allocatable[name] = amount
    return msgspec.structs.replace(
        facts,
        labels={**claim.metadata.labels, **facts.labels},
        taints=tuple(NodeTaint(taint.key, taint.value, taint.effect) for taint in (*kept, *missing)),
        allocatable=allocatable,
    )


def _free(facts: NodeFacts, pods: Sequence[PodView], daemons: Iterable[DaemonView]) -> Requests:
    """Return what pods, and DaemonSets whose pod is still to come, leave of the node."""
    free = dict(facts.allocatable)
    present = {pod.daemon for pod in pods if pod.daemon}
    coming = [
        daemon.info
        for daemon in daemons
        if daemon.info is not None and daemon.metadata.uid not in present and admits_pod(daemon.info, facts)
    ]
    for info in (*(pod.info for pod in pods if pod.info is not None), *coming):
        for name, amount in info.requests.items():
            if name in free:
                free[name] -= amount
        if "pods" in free:
            free["pods"] -= 1
    return free


def _gpu_state(node: Node, gpunode: GPUNode | None, pods: Iterable[PodView]) -> NodeState | None:
    """Return the node's GPUs with what pods hold of them; None where no GPUNode lists them."""
    if gpunode is None or not gpunode.status.gpus:
        return None
    gpus = gpus_of(gpunode)
    ledger = Ledger()
    name = node.metadata.name
    ledger.set_node(name, gpus, by_count=counted_by_scheduler(node.status.capacity, gpus))
    for pod in pods:
        if pod.assignment is not None:
            ledger.hold(pod.metadata.uid, name, pod.assignment)
    return ledger.node(name)
