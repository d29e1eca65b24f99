"""Places that are reserved for pods that do not exist yet: the replacements of pods that are being moved.

A hold is in the ledger and in the cache, so that neither this scheduler nor the extender gives the place away. It is
in memory; a new leader makes it again from the record of the move (`records`).

Invariants:

- A hold ends with its move: when a pod of the same controller and shape has the place, or at the end of its time.
- While the place is decided about for the pod that gets it, the hold is lifted. Nothing waits in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.defrag.search import Move, replacement_of, within
from gpuplane.scheduler.filtering import Filtering
from gpuplane.scheduler.pods.decide import fits_now
from gpuplane.scheduler.pods.objects import ScheduledPod
from kubekit.errors import Retryable
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.podinfo import NO_AFFINITY, PodInfo

_PRIORITY: Final = 2**31 - 1  # so that no preemption and no queue reclaims the place
_PREFIX: Final = "place:"  # of the uid of a pod that does not exist yet


class ReservedPlace(msgspec.Struct):
    """The place of one move. `held`: it is in the ledger now. `taken_by`: the uid of the pod that got it."""

    move: Move
    stand_in: PodInfo  # counts in the cache as long as it is held
    held: bool = False
    taken_by: str = ""

    @property
    def key(self) -> str:
        """Return the key of the hold in the ledger."""
        return self.stand_in.uid


def hold_for(move: Move) -> ReservedPlace:
    """Return the hold of a move, which holds nothing yet."""
    info = replacement_of(move.pod).info
    assert info is not None
    # NB: without labels and affinity it has no say in what other pods' affinities and spreading find.
    alone = msgspec.structs.replace(
        info,
        name=f"{move.pod.metadata.name} (place)",  # no pod can have this name
        uid=_PREFIX + move.pod.metadata.uid,
        node_name=move.node,
        labels={},
        affinity=NO_AFFINITY,
        priority=_PRIORITY,
        spread=(),
    )
    return ReservedPlace(move, alone)


class Holds:
    """The places that are held, on the scheduler's view of the cluster."""

    def __init__(self, cache: SchedulerCache, cluster: Cluster, filtering: Filtering) -> None:
        self._cache = cache
        self._cluster = cluster
        self._filtering = filtering
        self._holds: dict[str, ReservedPlace] = {}

    def __len__(self) -> int:
        return len(self._holds)

    def begin(self, hold: ReservedPlace) -> None:
        """Reserve the place. Raises Retryable if it is taken."""
        self._put(hold)
        self._holds[hold.key] = hold

    def end(self, hold: ReservedPlace) -> None:
        """Give the place up, unless a pod has it."""
        self._lift(hold)
        self._holds.pop(hold.key, None)
        if hold.taken_by:
            self._filtering.nominations.reserved.discard(hold.taken_by)

    def of(self, pod: ScheduledPod) -> ReservedPlace | None:
        """Return a hold whose place is for such a pod."""
        if not self._holds or not pod.owner:
            return None
        for hold in self._holds.values():
            moved = hold.move.pod
            same = (moved.owner, moved.kind, moved.metadata.namespace) == (pod.owner, pod.kind, pod.metadata.namespace)
            if same and not hold.taken_by:
                return hold
        return None

    def give(self, hold: ReservedPlace, pod: ScheduledPod, refuses: Callable[[PodInfo], str]) -> ScheduledPod | None:
        """Lift the hold for the pod, and return the pod with a request for its GPUs alone. Reserve it at once.

        Return None, with the place still held, where the pod does not fit there yet.

        Args:
            refuses: returns why the pod's queue may not hold more; empty if it may.
        """
        assert pod.info is not None
        node = hold.move.node
        narrowed = msgspec.structs.replace(pod, request=within(pod.request, hold.move.given.uuids()))
        self._lift(hold)
        if not refuses(pod.info) and self._fits(narrowed, node):
            hold.taken_by = pod.metadata.uid
            self._filtering.nominations.reserved.add(pod.metadata.uid)
            return narrowed
        self._put_back(hold)
        return None

    def take_back(self, uid: str) -> None:
        """Hold the place again of a pod that was not bound to it."""
        for hold in self._holds.values():
            if hold.taken_by == uid:
                hold.taken_by = ""
                self._filtering.nominations.reserved.discard(uid)
                self._put_back(hold)

    def _fits(self, pod: ScheduledPod, node: str) -> bool:
        """Return whether the pod may go to the node now; pods that are nominated to it do not count for its GPUs."""
        try:
            return not self._cluster.unusable(node) and fits_now(pod, node, self._cache, self._filtering)
        except Retryable:
            return False

    def _put(self, hold: ReservedPlace) -> None:
        request, move = hold.move.pod.request, hold.move
        self._cluster.ledger.reserve(
            hold.key,
            move.node,
            move.given,
            cpu_milli=request.cpu_milli,
            host_memory_mib=request.host_memory_mib,
        )
        self._cache.place(hold.stand_in)
        hold.held = True

    def _put_back(self, hold: ReservedPlace) -> None:
        try:
            self._put(hold)
        except Retryable:  # the node lost a GPU, or another process's pod has it: the pod is placed as any other
            self._holds.pop(hold.key, None)

    def _lift(self, hold: ReservedPlace) -> None:
        if hold.held:
            hold.held = False
            self._cluster.ledger.rollback(hold.key)
            self._cache.remove(hold.stand_in.key)
