"""Counts of the room that each domain of a topology has for a kind of pods, on the scheduler's cache and the ledger.

A count of resources and free GPUs, so more than a pod may find: it leaves out domains that need not be tried. Where a
node's room depends on this node alone, only nodes that changed since the last gang of the kind are counted again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.gangs import topology
from gpuplane.scheduler.gangs.gang import GPU
from gpuplane.scheduler.gangs.topology import DomainRoom, DomainRooms, GPURooms
from gpuplane.scheduler.pods.objects import ScheduledPod
from gpuplane.scheduler.pods.ranking import NodeRanking
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.check import FilterCheck
from kubekit.scheduling.podinfo import PodInfo

_KINDS: Final = 64


class _KindRooms(msgspec.Struct):
    cache_revision: int = -1
    ledger_revision: int = -1
    nodes: dict[str, int] = {}
    gpus: GPURooms | None = None


class GangRooms:
    """The rooms of nodes and GPUs for the kinds of pods that were asked about."""

    def __init__(self, cache: SchedulerCache, cluster: Cluster, ranking: NodeRanking) -> None:
        self._cache = cache
        self._cluster = cluster
        self._ranking = ranking
        self._kinds: OrderedDict[tuple[bytes, bool], _KindRooms] = OrderedDict()

    def of(self, level: str, pod: ScheduledPod) -> DomainRooms | GPURooms:
        """Return the domains of the level with their room for pods like this."""
        assert pod.info is not None
        if level == GPU:
            known = self._current(pod, pod.info, by_gpu=True)
            assert known.gpus is not None
            return known.gpus
        nodes = self._current(pod, pod.info, by_gpu=False).nodes
        return DomainRooms(
            DomainRoom(one, sum(nodes.get(name, 0) for name in one.nodes))
            for one in topology.domains(level, self._cache.candidates())
        )

    def _current(self, pod: ScheduledPod, info: PodInfo, *, by_gpu: bool) -> _KindRooms:
        cache, ledger = self._cache, self._cluster.ledger
        key, alone = (pod.kind, by_gpu), self._ranking.each_alone(pod)
        known = self._kinds.pop(key, None) if alone else None
        changed: set[str] | None = None
        if known is not None:
            by_cache, by_ledger = cache.changed_since(known.cache_revision), ledger.changed_since(known.ledger_revision)
            if by_cache is not None and by_ledger is not None and "" not in by_cache:
                changed = {*by_cache, *by_ledger}
        if known is None or changed is None:
            known = _KindRooms(gpus=GPURooms() if by_gpu else None)
            changed = {node.name for node in cache.candidates()}
        check = FilterCheck(info, cache)
        for name in changed:
            self._count(name, known, check, pod, info)
        known.cache_revision, known.ledger_revision = cache.revision, ledger.revision
        if alone:
            self._kinds[key] = known
            if len(self._kinds) > _KINDS:
                self._kinds.popitem(last=False)
        return known

    def _count(self, name: str, known: _KindRooms, check: FilterCheck, pod: ScheduledPod, info: PodInfo) -> None:
        node, state = self._cache.nodes.get(name), self._cluster.ledger.node(name)
        fits = (
            node is not None and node.facts is not None and name not in self._cluster.not_ready and check(node) is None
        )
        if known.gpus is not None:
            gpus = state.gpus if state is not None and node is not None and node.facts is not None else ()
            rooms = {}
            if fits and node is not None and state is not None:
                rooms = topology.room_on_gpus(node, state, info, pod.request)
            known.gpus.set_node(name, gpus, rooms)
        elif fits and node is not None:
            known.nodes[name] = topology.room_on_node(node, state, info, pod.request)
        else:
            known.nodes.pop(name, None)
