"""The reservations of all pods: applies the state machine of `reservation` to the ledger, the quotas and the timers.

Invariants:

- The ledger holds the GPUs of a reservation from its first state to its end. A tentative one holds them under a key of
  its own, counts for no quota and refuses no pod: where nothing else fits, `tentative_aside` frees its GPUs.
- A late event for a reservation that has ended changes nothing.
- A read decides only on the state in which it began: a Binding that was sent meanwhile may not be in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.reservation import (
    LIMIT_SECONDS,
    TENTATIVE_SECONDS,
    Reservation,
    ReservationEvent,
    ReservationState,
)
from gpuplane.scheduler.transforms import CachedPod
from gpuplane.sharing import Assignment
from kubekit.errors import Retryable
from kubekit.kube import Clock
from kubekit.kube.clock import Timer

log = logging.getLogger("gpuplane.scheduler")
RETRY_SECONDS: Final = 5.0  # until a pod that could not be read is read again
_MOST_TENTATIVE: Final = 1000
_TENTATIVE_PREFIX: Final = "tentative:"  # of the ledger's key
_FIRST_EVENTS: Final = (ReservationEvent.BIND, ReservationEvent.PROMISED)


class Reservations:
    """
    Args:
        read: reads the pod of a reservation and returns what that means; None when the pod cannot be read now.
    """

    def __init__(
        self, cluster: Cluster, clock: Clock, read: Callable[[Reservation], Awaitable[ReservationEvent | None]]
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._read = read
        self._by_uid: dict[str, Reservation] = {}
        self._tentative: dict[str, Reservation] = {}  # of `_by_uid`, the oldest first
        self._tentative_of_node: dict[str, set[str]] = {}
        self._count = dict.fromkeys(ReservationState, 0)
        self._timers: dict[str, Timer] = {}
        self._answered = asyncio.Event()  # no answer is on its way
        self._answered.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_end: list[Callable[[Reservation], None]] = []  # of those that were more than tentative
        cluster.on_pod.append(self._watched)

    def __len__(self) -> int:
        return len(self._by_uid)

    def count(self, *states: ReservationState) -> int:
        """Return how many reservations are in one of the states."""
        return sum(self._count[state] for state in states)

    def get(self, uid: str) -> Reservation | None:
        return self._by_uid.get(uid)

    def node_of_unsettled(self, uid: str) -> str | None:
        """Return the node of a pod whose Binding may still be carried out."""
        reservation = self._by_uid.get(uid)
        return reservation.node if reservation is not None and reservation.state.unsettled else None

    # -- beginnings ----------------------------------------------------------------------------------------------------

    def begin(self, reservation: Reservation, event: ReservationEvent) -> None:
        """Reserve the GPUs, for a BIND or what was PROMISED; the pod's tentative reservation ends in any case.

        Raises Retryable when the GPUs are taken, or when the pod has a reservation that is certain.
        """
        assert event in _FIRST_EVENTS
        pod, node = reservation.pod, reservation.node
        self.retry(reservation.uid)
        self._hold(reservation.uid, reservation)
        if pod.request:
            self._cluster.count(pod, node)
        self._by_uid[reservation.uid] = reservation
        self.apply(reservation, event)

    def prefer(self, pod: CachedPod, node: str, assignment: Assignment) -> None:
        """Reserve tentatively what the pod will most likely get; nothing for a pod whose reservation is certain."""
        uid = pod.metadata.uid
        self.retry(uid)
        if uid in self._by_uid:
            return
        if len(self._tentative) >= _MOST_TENTATIVE:
            self.apply(next(iter(self._tentative.values())), ReservationEvent.YIELDED)
        reservation = Reservation(pod, node, assignment, deadline=self._clock.now() + TENTATIVE_SECONDS)
        try:
            self._hold(_TENTATIVE_PREFIX + uid, reservation)
        except Retryable:
            return  # it was placed where another tentative reservation is
        self._by_uid[uid] = self._tentative[uid] = reservation
        self._tentative_of_node.setdefault(node, set()).add(uid)
        self.apply(reservation, ReservationEvent.PREFERRED)

    def _hold(self, key: str, reservation: Reservation) -> None:
        """Reserve in the ledger what the pod gets. Raises Retryable when the GPUs are taken."""
        request = reservation.pod.request
        self._cluster.ledger.reserve(
            key,
            reservation.node,
            reservation.assignment,
            cpu_milli=request.cpu_milli,
            host_memory_mib=request.host_memory_mib,
        )

    # -- tentative reservations ----------------------------------------------------------------------------------------

    def retry(self, uid: str) -> None:
        """End the pod's tentative reservation, if it has one: the pod is decided again."""
        reservation = self._tentative.get(uid)
        if reservation is not None:
            self.apply(reservation, ReservationEvent.RETRIED)

    def yield_node(self, node: str) -> None:
        """End the tentative reservations of the node, for a reservation that is certain."""
        for uid in list(self._tentative_of_node.get(node, ())):
            self.apply(self._tentative[uid], ReservationEvent.YIELDED)

    def expire(self) -> None:
        """End the tentative reservations whose time is over."""
        now = self._clock.now()
        while self._tentative:
            reservation = next(iter(self._tentative.values()))
            if reservation.deadline > now:
                return
            self.apply(reservation, ReservationEvent.EXPIRED)

    def tentative_nodes(self) -> list[str]:
        """Return the nodes that have tentative reservations."""
        return list(self._tentative_of_node)

    @contextlib.contextmanager
    def tentative_aside(self) -> Iterator[None]:
        """Free the GPUs of tentative reservations for as long as the context lasts; nothing may be reserved in it."""
        ledger = self._cluster.ledger
        for uid in self._tentative:
            ledger.rollback(_TENTATIVE_PREFIX + uid)
        try:
            yield
        finally:
            for uid, reservation in list(self._tentative.items()):
                try:
                    self._hold(_TENTATIVE_PREFIX + uid, reservation)
                except Retryable:
                    self.apply(reservation, ReservationEvent.YIELDED)  # a GPU was lost meanwhile

    # -- transitions ---------------------------------------------------------------------------------------------------

    def apply(self, reservation: Reservation, event: ReservationEvent) -> None:
        """Move the reservation on, unless it has ended. Raises ValueError for an event that its state cannot take."""
        uid, before = reservation.uid, reservation.state
        if self._by_uid.get(uid) is not reservation:
            return
        reservation.apply(event)
        state, count = reservation.state, self._count
        if before is not ReservationState.ABSENT:
            count[before] -= 1
        count[state] += 1
        if count[ReservationState.POSTING] or count[ReservationState.REPOSTING]:
            self._answered.clear()
        else:
            self._answered.set()
        if state.ended:
            self._end(reservation, before)
            return
        if state is ReservationState.BOUND:
            self._cluster.ledger.commit(uid)
        self._set_timer(reservation, LIMIT_SECONDS.get(state))

    def _end(self, reservation: Reservation, before: ReservationState) -> None:
        uid, state = reservation.uid, reservation.state
        del self._by_uid[uid]
        self._count[state] -= 1
        self._stop_timer(uid)
        if before is ReservationState.TENTATIVE:
            del self._tentative[uid]
            uids = self._tentative_of_node[reservation.node]
            uids.discard(uid)
            if not uids:
                del self._tentative_of_node[reservation.node]
            self._cluster.ledger.rollback(_TENTATIVE_PREFIX + uid)
            return
        if state is not ReservationState.DELIVERED:  # then the cluster counts the pod by itself
            self._cluster.release(uid)
        if state is ReservationState.DELETED:
            self._cluster.gone(uid)
        for tell in self.on_end:
            tell(reservation)

    def _watched(self, uid: str, pod: CachedPod | None) -> None:
        reservation = self._by_uid.get(uid)
        if reservation is not None and (pod is None or pod.spec.node_name):
            self.apply(reservation, ReservationEvent.WATCHED)

    # -- time limits ---------------------------------------------------------------------------------------------------

    async def settle(self, reservation: Reservation, *, overdue: bool) -> None:
        """Read the pod and apply the result; a pod that cannot be read is read again later.

        `overdue`: the time limit of the state is over, so a Binding that was not carried out will never be.
        """
        if self._by_uid.get(reservation.uid) is not reservation:
            return
        moves = reservation.moves
        event = await self._read(reservation)
        if reservation.moves != moves:
            return  # its new state has a time limit of its own, or it has ended
        if not overdue and event in (None, ReservationEvent.READ_UNBOUND):
            return  # the timer goes on
        if event is None:
            self._set_timer(reservation, RETRY_SECONDS)
        else:
            self.apply(reservation, event)

    def _set_timer(self, reservation: Reservation, seconds: float | None) -> None:
        self._stop_timer(reservation.uid)
        if seconds is not None:
            self._timers[reservation.uid] = self._clock.call_later(seconds, lambda: self._overdue(reservation))

    def _stop_timer(self, uid: str) -> None:
        timer = self._timers.pop(uid, None)
        if timer is not None:
            timer.cancel()

    def _overdue(self, reservation: Reservation) -> None:
        settling = self.settle(reservation, overdue=True)
        task = asyncio.get_running_loop().create_task(settling, name=f"settle {reservation.pod.shown}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self, seconds: float) -> None:
        """Wait for answers that are on their way, `seconds` at most, then stop the timers and the reads."""
        try:
            async with asyncio.timeout(seconds):
                await self._answered.wait()
        except TimeoutError:
            count = self.count(ReservationState.POSTING, ReservationState.REPOSTING)
            log.warning("stopping without answers bindings=%d", count)
        for uid in list(self._timers):
            self._stop_timer(uid)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
