"""Nodes that exist or are on their way, as they are filled with pods that wait: they cost nothing more.

A pod goes to the first node that holds it, initialised nodes first, then by name. The filters of `kubekit.scheduling`
and the placement of `gpuplane.sharing` decide what fits, as they do for a node to buy. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.autoscaler.asks import PodAsk, admits_ask
from gpuplane.autoscaler.domain_check import DomainCheck
from gpuplane.autoscaler.domains import HOSTNAME
from gpuplane.autoscaler.options import NodeOption
from gpuplane.autoscaler.volume_limits import UNLIMITED, VolumeRoom
from gpuplane.sharing.node import NodeState
from gpuplane.sharing.placement.fit import place_by_count, rate, taken
from gpuplane.sharing.placement.policy import Placement
from gpuplane.sharing.placement.tightest import TightestPolicy
from kubekit.scheduling import filters
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.podinfo import NodeFacts, PodInfo, Requests

_POLICY: Final = TightestPolicy()
_OTHERS: Final = "the pods that are placed"  # the one refusal that may not last


class ExistingNode(msgspec.Struct, frozen=True, eq=False):
    """A node that pods may still be placed on, or a claim whose node has not joined yet.

    `name` is the node's, or that of a claim without a node. `free` is what is left of `facts.allocatable` by the pods
    there and the DaemonSets that have no pod there yet. `gpus` is None where no GPU is placed, only counted. `pods` run
    there; affinity and spreading see them. `volumes` are those that it can still attach. `pool` is empty and `price` 0
    for a node that no pool made.
    """

    name: str
    pool: str
    facts: NodeFacts
    free: Requests
    gpus: NodeState | None = None
    price: float = 0.0
    initialized: bool = True
    pods: tuple[PodInfo, ...] = ()
    volumes: VolumeRoom = UNLIMITED

    @property
    def places_shares(self) -> bool:
        return self.gpus is not None and names.VCUDA_CORE in self.facts.allocatable


def hold_pod(
    place: NodeOption | ExistingNode, requested: Requests, count: int, state: NodeState | None, ask: PodAsk
) -> NodeState | str | None:
    """Return the GPUs of an option, or a node, after a pod more, or the reason why it does not fit, as a text.

    Args:
        requested: the sum over the pods that were added, those that `place.free` leaves out not among them.
        count: the number of these pods.
    """
    failure = filters.check_resources(ask.info, place.free, requested, count, frozenset())
    if failure is not None:
        return ", ".join(failure.reasons)
    request = ask.request
    if state is None or not request or not (place.places_shares or request.selects):
        return state
    counted = place_by_count(state, request)
    if counted is not None:
        return state if isinstance(counted, Placement) else counted.reason
    rated = rate(state, request, _POLICY)
    if rated is None:
        return "no GPU has room for the share"
    return taken(state, request, rated[0])


def add_requests(requested: Requests, more: Requests) -> Requests:
    """Return the sum of two sets of requests."""
    return {**requested, **{name: requested.get(name, 0) + amount for name, amount in more.items()}}


class _FilledNode(msgspec.Struct, eq=False):
    node: ExistingNode
    state: NodeState | None
    volumes: VolumeRoom
    requested: Requests = {}
    count: int = 0


class NodeFilling:
    """Fills existing nodes. `placed` is pod -> node, both by key."""

    def __init__(self, existing: Iterable[ExistingNode]) -> None:
        ordered = sorted(existing, key=lambda node: (not node.initialized, node.name))
        self._nodes: Sequence[_FilledNode] = [_FilledNode(node, node.gpus, node.volumes) for node in ordered]
        # A node only gets fuller: one that refused a pod for its own sake is not asked again by pods of the same
        # requests, whatever pods they depend on.
        self._left: dict[int, Sequence[_FilledNode]] = {}
        self.placed: dict[str, str] = {}

    def furnish(self, cache: SchedulerCache) -> None:
        """Put the nodes into a cache, by which pods that depend on others are placed."""
        for filled in self._nodes:
            node = filled.node
            labels = {HOSTNAME: node.name, **node.facts.labels}
            cache.set_node(msgspec.structs.replace(node.facts, name=node.name, labels=labels))

    def add(self, ask: PodAsk, cache: SchedulerCache | None, check: DomainCheck | None) -> bool:
        """Place a pod on the first node that takes it; False if none does.

        Args:
            check: what the pods that are placed admit, None for a free pod.
        """
        nodes = self._left.get(ask.room)
        if nodes is None:
            nodes = self._left[ask.room] = self._roomy(ask)
        kept: list[_FilledNode] = []
        found = False
        tried = 0
        for filled in nodes:
            tried += 1
            after = self._fits(filled, ask, cache, check)
            if after == _OTHERS:
                kept.append(filled)
            elif not isinstance(after, str):
                kept.append(filled)
                self._place(filled, after, ask, cache)
                found = True
                break
        if len(kept) < tried:
            self._left[ask.room] = [*kept, *nodes[tried:]]
        return found

    def _roomy(self, ask: PodAsk) -> Sequence[_FilledNode]:
        """Return the nodes that have what a pod requests. In a full cluster this spares most nodes the other checks."""
        nodes = self._nodes
        for name, amount in ask.info.requests.items():
            if amount:
                nodes = [one for one in nodes if one.node.free.get(name, 0) - one.requested.get(name, 0) >= amount]
        return nodes

    def _place(self, filled: _FilledNode, after: NodeState | None, ask: PodAsk, cache: SchedulerCache | None) -> None:
        filled.state, filled.count = after, filled.count + 1
        filled.requested = add_requests(filled.requested, ask.info.requests)
        if ask.attached:
            filled.volumes = filled.volumes.after(ask.attached) or filled.volumes
        if cache is not None:
            cache.place(msgspec.structs.replace(ask.info, node_name=filled.node.name))
        self.placed[ask.key] = filled.node.name

    @staticmethod
    def _fits(
        filled: _FilledNode, ask: PodAsk, cache: SchedulerCache | None, check: DomainCheck | None
    ) -> NodeState | str | None:
        node = filled.node
        if filters.check_unschedulable(ask.info, node.facts) or not admits_ask(ask, node.facts):
            return "taints or labels"
        if ask.attached and filled.volumes.after(ask.attached) is None:
            return "volumes"
        after = hold_pod(node, filled.requested, filled.count, filled.state, ask)
        if isinstance(after, str) or check is None or cache is None:
            return after
        there = cache.nodes[node.name]
        if ask.info.ports and filters.check_ports(ask.info.ports, there.ports) is not None:
            return "host ports"
        labels = there.facts.labels if there.facts is not None else node.facts.labels
        return after if check.admits(labels) else _OTHERS
