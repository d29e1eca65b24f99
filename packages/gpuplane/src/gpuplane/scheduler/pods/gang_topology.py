"""Topology domains of a gang: which sets of nodes, or which GPUs, hold its pods together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from gpuplane.scheduler.pods.gang import GPU, LABELS, NODE
from gpuplane.sharing import NodeState
from gpuplane.sharing.placement.fit import usable_gpus
from gpuplane.sharing.request import Request
from kubekit.scheduling.cache import ClusterNode
from kubekit.scheduling.podinfo import PodInfo


class Domain(msgspec.Struct, frozen=True):
    """A place for a gang: its nodes, and its GPU where it is one. `shown` is how messages name it."""

    shown: str
    nodes: frozenset[str]
    uuid: str = ""


class DomainRoom(msgspec.Struct, frozen=True):
    """A domain, and the number of pods of a gang that have room in it at most."""

    domain: Domain
    pods: int


def domains(level: str, nodes: Iterable[ClusterNode], states: Mapping[str, NodeState]) -> list[Domain]:
    """Return the domains of a level, in the order of the nodes. A node without the label is in no domain; for NVLink
    it is one of its own.
    """
    if level == NODE:
        return [Domain(f"node {node.name}", frozenset((node.name,))) for node in nodes]
    if level == GPU:
        return [
            Domain(f"GPU {gpu.index} of {node.name}", frozenset((node.name,)), gpu.uuid)
            for node in nodes
            if (state := states.get(node.name)) is not None
            for gpu in state.gpus
            if gpu.usable
        ]
    label = LABELS.get(level, level)
    found: dict[str, set[str]] = {}
    alone: list[Domain] = []
    for node in nodes:
        value = node.facts.labels.get(label) if node.facts is not None else None
        if value:
            found.setdefault(value, set()).add(node.name)
        elif level == "nvlink":
            alone.append(Domain(f"node {node.name}", frozenset((node.name,))))
    return [Domain(f"{label}={value}", frozenset(members)) for value, members in found.items()] + alone


def room_on_node(node: ClusterNode, state: NodeState | None, info: PodInfo, request: Request, uuid: str = "") -> int:
    """Return how many copies of the pod have room on the node at most, by its resources and GPUs alone."""
    facts = node.facts
    if facts is None:
        return 0
    most = facts.allocatable.get("pods", 0) - len(node.pods)
    for name, amount in info.requests.items():
        if amount > 0:
            most = min(most, (facts.allocatable.get(name, 0) - node.requested.get(name, 0)) // amount)
    if not request or most <= 0:
        return max(0, most)
    if state is None:
        return 0
    if state.by_count and request.by_count:
        return most
    return min(most, _gpu_room(state, request, uuid))


def _gpu_room(state: NodeState, request: Request, uuid: str) -> int:
    usable = [at for at in usable_gpus(state, request) if not uuid or state.gpus[at].uuid == uuid]
    if len(request.asks) != 1:
        # Several containers may be spread over GPUs in many ways: no more than the sum of what is free.
        return sum(state.core[at] for at in usable) // max(1, request.core)
    ask = request.asks[0]
    if ask.gpus:
        return sum(state.core[at] == state.scale for at in usable) // ask.gpus
    return sum(_copies(state.core[at], ask.core, state.memory[at], ask.memory_mib) for at in usable)


def _copies(core: int, asked_core: int, memory: int, asked_memory: int) -> int:
    by_core = core // asked_core if asked_core else memory
    return min(by_core, memory // asked_memory) if asked_memory else by_core


def by_room(found: Iterable[Domain], room: Mapping[tuple[str, str], int]) -> list[DomainRoom]:
    """Return the domains with their room; `room` is by node and UUID ("" for all GPUs of a node)."""
    return [DomainRoom(one, sum(room.get((node, one.uuid), 0) for node in one.nodes)) for one in found]


def candidates(rooms: Iterable[DomainRoom], pods: int) -> Iterator[Domain]:
    """Yield the domains that may have room for so many pods: first those that are left with the least room."""
    for one in sorted((one for one in rooms if one.pods >= pods), key=lambda one: one.pods):
        yield one.domain


def nearest(rooms: Iterable[DomainRoom]) -> DomainRoom | None:
    """Return the domain with the most room."""
    return max(rooms, key=lambda one: one.pods, default=None)
