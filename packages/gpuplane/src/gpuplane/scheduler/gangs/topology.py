"""Topology domains of a gang: which sets of nodes, or which GPUs, hold its pods together. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice

import msgspec

from gpuplane.scheduler.gangs.gang import LABELS, NODE
from gpuplane.sharing import LedgerGPU, NodeState
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


def domains(level: str, nodes: Iterable[ClusterNode]) -> list[Domain]:
    """Return the domains of a level other than GPU, in the order of the nodes.

    A node without the label is in no domain; for NVLink it is one of its own.
    """
    if level == NODE:
        return [Domain(f"node {node.name}", frozenset((node.name,))) for node in nodes]
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


def room_on_node(node: ClusterNode, state: NodeState | None, info: PodInfo, request: Request) -> int:
    """Return how many copies of the pod have room on the node at most, by its resources and GPUs alone."""
    most = _room_by_resources(node, info)
    if not request or most <= 0:
        return max(0, most)
    if state is None:
        return 0
    if state.by_count and request.by_count:
        return most
    return min(most, _gpu_room(state, request, usable_gpus(state, request)))


def room_on_gpus(node: ClusterNode, state: NodeState, info: PodInfo, request: Request) -> dict[str, int]:
    """Return how many copies of the pod have room on each GPU of the node at most, by UUID; no entry for no room."""
    most = _room_by_resources(node, info)
    if most <= 0:
        return {}
    if not request or (state.by_count and request.by_count):
        return {gpu.uuid: most for gpu in state.gpus if gpu.usable}
    rooms = {state.gpus[at].uuid: min(most, _gpu_room(state, request, (at,))) for at in usable_gpus(state, request)}
    return {uuid: room for uuid, room in rooms.items() if room}


def _room_by_resources(node: ClusterNode, info: PodInfo) -> int:
    facts = node.facts
    if facts is None:
        return 0
    most = facts.allocatable.get("pods", 0) - len(node.pods)
    for name, amount in info.requests.items():
        if amount > 0:
            most = min(most, (facts.allocatable.get(name, 0) - node.requested.get(name, 0)) // amount)
    return most


def _gpu_room(state: NodeState, request: Request, usable: Collection[int]) -> int:
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


class DomainRooms:
    """The domains of a level with their room for one kind of pods, sorted by that room when it is asked for."""

    def __init__(self, rooms: Iterable[DomainRoom]) -> None:
        self._rooms = list(rooms)

    def candidates(self, pods: int) -> Iterator[Domain]:
        """Yield the domains that may have room for so many pods: first those that are left with the least room."""
        for one in sorted((one for one in self._rooms if one.pods >= pods), key=lambda one: one.pods):
            yield one.domain

    def largest(self, most: int) -> list[DomainRoom]:
        """Return so many domains at most, those with the most room first."""
        return sorted(self._rooms, key=lambda one: -one.pods)[:most]

    def only(self, fits: Callable[[Domain], bool]) -> DomainRooms:
        """Return the domains that fit."""
        return DomainRooms(one for one in self._rooms if fits(one.domain))


class GPURooms:
    """The GPUs of a cluster by their room for one kind of pods; only the nodes that change are counted again."""

    def __init__(self) -> None:
        self._domains: dict[str, dict[str, Domain]] = {}  # by node and UUID
        self._rooms: dict[str, dict[str, int]] = {}  # of each node, by UUID; GPUs without room are absent
        self._by_room: dict[int, dict[str, Domain]] = {}  # and by UUID

    def set_node(self, name: str, gpus: Iterable[LedgerGPU], rooms: dict[str, int]) -> None:
        """Replace what is known of a node.

        Args:
            gpus: of the node, usable or not; none for a node that is gone.
            rooms: the number of pods that have room on each, by UUID.
        """
        for uuid, room in self._rooms.pop(name, {}).items():
            bucket = self._by_room[room]
            del bucket[uuid]
            if not bucket:
                del self._by_room[room]
        before = self._domains.pop(name, {})
        within = frozenset((name,))
        found = {gpu.uuid: Domain(f"GPU {gpu.index} of {name}", within, gpu.uuid) for gpu in gpus if gpu.usable}
        self._domains[name] = before if before == found else found
        self._rooms[name] = rooms
        for uuid, room in rooms.items():
            self._by_room.setdefault(room, {})[uuid] = self._domains[name][uuid]

    def nodes(self) -> set[str]:
        return set(self._domains)

    def candidates(self, pods: int) -> Iterator[Domain]:
        """Yield the GPUs that may have room for so many pods: first those that are left with the least room."""
        for room in sorted(room for room in self._by_room if room >= pods):
            yield from list(self._by_room[room].values())

    def largest(self, most: int) -> list[DomainRoom]:
        """Return so many GPUs at most, those with the most room first."""
        with_room = (
            DomainRoom(one, room)
            for room in sorted(self._by_room, reverse=True)
            for one in self._by_room[room].values()
        )
        found = list(islice(with_room, most))
        without = (
            DomainRoom(one, 0)
            for node, gpus in self._domains.items()
            for uuid, one in gpus.items()
            if uuid not in self._rooms[node]
        )
        return found + list(islice(without, most - len(found)))

    def only(self, fits: Callable[[Domain], bool]) -> DomainRooms:
        """Return the GPUs that fit."""
        return DomainRooms(
            DomainRoom(one, self._rooms[node].get(uuid, 0))
            for node, gpus in self._domains.items()
            for uuid, one in gpus.items()
            if fits(one)
        )
