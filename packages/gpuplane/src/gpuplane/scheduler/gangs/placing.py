"""Places the pods of a gang together: a node for each, or none for any. Without I/O.

The pods are tried one after the other on the scheduler's cache and the ledger, each next to those before it, by the
same filters, quotas and policy as a single pod. Then all of it is taken back: cache and ledger are as before.

With a topology, the domains that may have room are tried, the one with the least room first, so that large ones stay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final

import msgspec

from gpuplane.scheduler.cluster import NO_GPUS, Cluster
from gpuplane.scheduler.filtering import Filtering
from gpuplane.scheduler.gangs import minimum
from gpuplane.scheduler.gangs.gang import Gang
from gpuplane.scheduler.gangs.rooms import GangRooms
from gpuplane.scheduler.gangs.topology import Domain, DomainRooms, GPURooms
from gpuplane.scheduler.pods.decide import Decision, choose_node
from gpuplane.scheduler.pods.objects import ScheduledPod, kind_without_number
from gpuplane.scheduler.pods.ranking import NodeRanking
from gpuplane.sharing import Assignment
from gpuplane.sharing.placement import Placement
from kubekit.errors import Retryable
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.check import FilterCheck
from kubekit.scheduling.podinfo import PodInfo
from kubekit.scheduling.queue import ERROR, GPUS
from kubekit.scheduling.volumes.binding import assume, restore
from kubekit.scheduling.volumes.store import VolumePlan

MOST_DOMAINS: Final = 32
"""Domains to try for a gang. Each takes as long as the decision for all its pods."""
MOST_NEAREST: Final = 8
"""Domains to name where none has room by its free GPUs and resources."""
ROOM_CAUSES: Final = frozenset({GPUS, "NodeResourcesFit", "NodeAffinity"})


class GangPlace(msgspec.Struct, frozen=True):
    """The node of one pod. The pod's request names the GPU where the gang has to be on one."""

    pod: ScheduledPod
    node: str


class TriedDomain(msgspec.Struct, frozen=True):
    """A topology domain without room for the gang, and the number of its pods that have room there.

    `domain` is None where the gang requires no topology. `why` is what the next pod lacks, empty for a domain that was
    not tried since its free GPUs and resources do not suffice.
    """

    domain: Domain | None
    pods: int
    why: str = ""


class GangDecision(msgspec.Struct, frozen=True):
    """A place for each pod, or none and why. `tried` are domains without enough room, those with the most room first
    where none was tried.
    """

    places: tuple[GangPlace, ...] = ()
    message: str = ""
    causes: frozenset[str] = frozenset()
    tried: tuple[TriedDomain, ...] = ()


class GangPlacer:
    """Decides for gangs on the scheduler's cache and the ledger."""

    def __init__(self, cache: SchedulerCache, cluster: Cluster, filtering: Filtering, ranking: NodeRanking) -> None:
        self._cache = cache
        self._cluster = cluster
        self._filtering = filtering
        self._ranking = ranking
        self._rooms = GangRooms(cache, cluster, ranking)

    def place(self, gang: Gang, pods: Sequence[ScheduledPod], bound: Sequence[ScheduledPod] = ()) -> GangDecision:
        """Return places for all the pods, or why there are none. Room that is reserved for these pods is theirs.

        Args:
            bound: pods of the gang that have a node already; a required topology holds for them too.
        """
        with self.own_room(pods):
            return self._place(gang, pods, bound)

    @contextlib.contextmanager
    def own_room(self, pods: Sequence[ScheduledPod]) -> Iterator[None]:
        """Let each of the pods have the room that is reserved for all of them, for as long as the context lasts."""
        keys = {pod.info.key for pod in pods if pod.info is not None}
        uids = [pod.metadata.uid for pod in pods]
        with self._cache.nominations_aside(keys), self._filtering.nominations.aside(uids):
            yield

    def _place(self, gang: Gang, pods: Sequence[ScheduledPod], bound: Sequence[ScheduledPod]) -> GangDecision:
        if not bound and (lacking := minimum.lacking(gang.minimum, self._cache)):
            return GangDecision(message=f"gang {gang.name}: {lacking}", causes=ROOM_CAUSES)
        required: list[Domain | None] = [None]
        if gang.required:
            pod, wanted = _largest(pods)
            rooms = self._rooms.of(gang.required, pod)
            if bound:
                rooms = rooms.only(lambda domain: self._holds(domain, bound))
            required = list(islice(rooms.candidates(wanted), MOST_DOMAINS))
            if not required:
                return _no_domain(gang, len(pods), rooms)
        message, causes = "", ROOM_CAUSES if gang.required or gang.preferred else frozenset()
        tried: list[TriedDomain] = []
        for domain in chain(islice(self._preferred(gang, pods, required), MOST_DOMAINS), required):
            decision = self._try(gang, pods, domain)
            if decision.places:
                return decision
            message, causes = message or decision.message, causes | decision.causes
            tried += decision.tried
        return GangDecision(message=message, causes=causes, tried=tuple(tried))

    def _preferred(
        self, gang: Gang, pods: Sequence[ScheduledPod], required: Sequence[Domain | None]
    ) -> Iterator[Domain | None]:
        if not gang.preferred:
            return
        pod, wanted = _largest(pods)
        rooms = self._rooms.of(gang.preferred, pod)
        for outer in required:
            for inner in rooms.candidates(wanted):
                if outer is None or (inner.nodes <= outer.nodes and outer.uuid in ("", inner.uuid)):
                    yield inner

    def _holds(self, domain: Domain, bound: Sequence[ScheduledPod]) -> bool:
        """Return whether a pod that is bound already is in the domain."""
        for pod in bound:
            held = self._cluster.ledger.holding(pod.metadata.uid)
            node = held[0] if held is not None else pod.spec.node_name
            uuids = {uuid for uuid, _ in held[1].held()} if held is not None else set()
            if node in domain.nodes and (not domain.uuid or domain.uuid in uuids):
                return True
        return False

    # -- trying ------------------------------------------------------------------------------------------------------

    def _try(self, gang: Gang, pods: Sequence[ScheduledPod], domain: Domain | None) -> GangDecision:
        """Place the pods in the domain one after the other, and take all of it back."""
        within = domain.nodes if domain is not None else None
        uuid = domain.uuid if domain is not None else ""
        places: list[GangPlace] = []
        with contextlib.ExitStack() as undo:
            for one in pods:
                pod = _on_gpu(one, uuid) if uuid else one
                node = self._ranking.best(pod, within)
                decision = Decision(node) if node is not None else self._chosen(pod, within)
                if not decision.node:
                    where = f" in {domain.shown}" if domain is not None else ""
                    text = f"gang {gang.name}: {len(places)} of {len(pods)} pods have room together{where}; "
                    tried = (TriedDomain(domain, len(places), decision.message),)
                    return GangDecision((), text + f"the next one: {decision.message}", decision.causes, tried)
                self._hold(pod, decision.node, undo)
                places.append(GangPlace(pod, decision.node))
        return GangDecision(tuple(places))

    def _chosen(self, pod: ScheduledPod, within: frozenset[str] | None) -> Decision:
        return choose_node(pod, self._cache, self._filtering, within=within)

    def _hold(self, pod: ScheduledPod, node: str, undo: contextlib.ExitStack) -> None:
        """Count the pod on the node until the trial is taken back. Raises Retryable where it has no place after all."""
        assert pod.info is not None
        assignment: Assignment = NO_GPUS
        if pod.request:
            placed = self._filtering.answers(pod.request).place(node)
            if not isinstance(placed, Placement):
                raise Retryable(placed.reason, where=node)
            assignment = placed.assignment
        uid, ledger, usage, cache = pod.metadata.uid, self._cluster.ledger, self._cluster.usage, self._cache
        request = pod.request
        ledger.reserve(uid, node, assignment, cpu_milli=request.cpu_milli, host_memory_mib=request.host_memory_mib)
        undo.callback(ledger.rollback, uid)
        if request:
            self._cluster.count(pod, node)
            undo.callback(usage.remove, uid)
        self._take_more(pod.info, node, undo)
        cache.place(msgspec.structs.replace(pod.info, node_name=node))
        undo.callback(cache.remove, pod.info.key)

    def _take_more(self, info: PodInfo, node: str, undo: contextlib.ExitStack) -> None:
        """Count the volumes and devices that the pod would get on the node as taken."""
        facts, cache = self._cache.nodes[node].facts, self._cache
        if facts is None or not (info.volumes or info.claims):
            return
        check = FilterCheck(info, cache)
        planned = check.volumes.plan(facts) if check.volumes is not None else None
        if isinstance(planned, VolumePlan):
            assume(planned, cache.volumes)
            undo.callback(restore, planned, cache.volumes)
        if check.devices is not None:
            for claim in check.devices.allocated_on(facts):
                cache.devices.assume(claim)
                undo.callback(cache.devices.restore, claim)


def _largest(pods: Sequence[ScheduledPod]) -> tuple[ScheduledPod, int]:
    """Return the pod that requests most of GPUs, and how many of the pods equal it but for numbers in labels."""
    largest = max(pods, key=lambda pod: pod.request.core)
    if all(pod.kind == largest.kind for pod in pods):
        return largest, len(pods)
    alike = kind_without_number(largest)
    return largest, sum(kind_without_number(pod) == alike for pod in pods)


def _on_gpu(pod: ScheduledPod, uuid: str) -> ScheduledPod:
    """Return the pod as one that wants this GPU."""
    request = msgspec.structs.replace(pod.request, uuids=(uuid,)) if pod.request else pod.request
    return msgspec.structs.replace(pod, request=request, kind=b"")


def _no_domain(gang: Gang, pods: int, rooms: DomainRooms | GPURooms) -> GangDecision:
    found = rooms.largest(MOST_NEAREST)
    if not found:
        text = f"no node is in a topology domain ({gang.required}), which it requires"
    else:
        near = found[0]
        text = f"needs room for {pods} pods in one {gang.required}; the nearest is {near.domain.shown}, for {near.pods}"
    tried = tuple(TriedDomain(one.domain, one.pods) for one in found)
    return GangDecision(message=f"gang {gang.name}: {text}", causes=ROOM_CAUSES, tried=tried)


def failed(error: Exception) -> GangDecision:
    """Return the decision for a gang that is tried again by itself."""
    return GangDecision(message=str(error), causes=frozenset({ERROR}))
