"""Sends the Bindings of pods that are reserved, and queues a pod again whose reservation ended without one.

At most BINDINGS_AT_ONCE are on their way. If volumes or devices have to be written before, the pod waits for that
without a slot (`prebinding`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from gpuplane.scheduler.binding import Binder
from gpuplane.scheduler.claims.prebinding import PreBinding
from gpuplane.scheduler.pods.decide import Decision
from gpuplane.scheduler.pods.metrics import TryCounts
from gpuplane.scheduler.pods.model import PodModel
from gpuplane.scheduler.pods.objects import ScheduledPod
from gpuplane.scheduler.pods.report import Reporter
from gpuplane.scheduler.reservation import Reservation, ReservationEvent, ReservationState
from gpuplane.scheduler.reservations import Reservations
from kubekit.errors import KubekitError, Retryable
from kubekit.kube import Clock
from kubekit.scheduling.queue import ERROR, QueueEntry

log = logging.getLogger("gpuplane.scheduler")
BINDINGS_AT_ONCE: Final = 48


class PodBindings:
    """
    Args:
        start: runs a task until the scheduler ends.
        not_placed: called with the uid of a pod that was not bound to its place.
    """

    def __init__(
        self,
        clock: Clock,
        model: PodModel,
        *,
        reservations: Reservations,
        binder: Binder,
        before: PreBinding,
        reporter: Reporter,
        counts: TryCounts,
        start: Callable[[Coroutine[Any, Any, None], str], None],
        not_placed: Callable[[str], None],
    ) -> None:
        self.in_flight = 0  # Bindings without an answer yet
        self.slots = asyncio.Semaphore(BINDINGS_AT_ONCE)
        self._clock = clock
        self._model = model
        self._reservations = reservations
        self._binder = binder
        self._before = before
        self._reporter = reporter
        self._counts = counts
        self._start = start
        self._not_placed = not_placed
        self._entries: dict[str, QueueEntry] = {}  # by uid, until the reservation has ended
        reservations.on_end.append(self._reservation_ended)

    def begin(self, entry: QueueEntry, pod: ScheduledPod, reservation: Reservation) -> bool:
        """Begin to bind a pod; return whether the slot that the caller holds is used for that."""
        if self._before.waits(reservation.uid):
            self.begin_later(entry, pod, reservation)  # its slot is free for others meanwhile
            return False
        self._entries[reservation.uid] = entry
        self._start(self._bind(entry, pod, reservation), f"bind {pod.shown}")
        return True

    def begin_later(self, entry: QueueEntry, pod: ScheduledPod, reservation: Reservation) -> None:
        """Begin to bind a pod that was reserved together with others, or whose volumes or devices are written first."""
        self._entries[reservation.uid] = entry
        self._start(self._bind_with_slot(entry, pod, reservation), f"bind {pod.shown}")

    def report_failure(self, pod: ScheduledPod, decision: Decision) -> None:
        """Report that a pod has no node, or was not bound."""
        if pod.info is not None:
            self._model.fair.refused(pod.info)
        failed = ERROR in decision.causes
        self._counts.results["error" if failed else "unschedulable"] += 1
        reason = "SchedulerError" if failed else "Unschedulable"
        self._reporter.failed(pod, reason, decision.message)

    async def _bind_with_slot(self, entry: QueueEntry, pod: ScheduledPod, reservation: Reservation) -> None:
        """Write a pod's volumes and devices, and bind it once there is a slot for its Binding."""
        if self._before.waits(reservation.uid) and not await self._bind_first(pod, reservation):
            return
        await self.slots.acquire()
        await self._bind(entry, pod, reservation)

    async def _bind_first(self, pod: ScheduledPod, reservation: Reservation) -> bool:
        """Return whether the pod's volumes and devices are written; if they are not, the pod is queued again."""
        try:
            await self._before.bind(reservation.uid)
        except Retryable as error:
            if not reservation.state.ended:  # else the pod is gone
                self.report_failure(pod, Decision(message=str(error), causes=frozenset({ERROR})))
        except asyncio.CancelledError:
            self._reservations.apply(reservation, ReservationEvent.REFUSED)
            raise
        else:
            return True
        self._reservations.apply(reservation, ReservationEvent.REFUSED)
        return False

    async def _bind(self, entry: QueueEntry, pod: ScheduledPod, reservation: Reservation) -> None:
        self.in_flight += 1
        try:
            await self._binder.post(reservation)
        except KubekitError as error:
            log.info("not bound pod=%s node=%s: %s", pod.shown, reservation.node, error)
            # NB: while the result is unknown the pod may be bound, and then its condition is the API server's.
            if reservation.state is ReservationState.RELEASED:
                message = f'running Bind plugin "DefaultBinder": {error}'
                self.report_failure(pod, Decision(message=message, causes=frozenset({ERROR})))
        else:
            self._counts.results["scheduled"] += 1
            self._model.queue.done(entry)
            self._reporter.scheduled(pod, reservation.node)
            self._binder.report(reservation)
        finally:
            self.in_flight -= 1
            self.slots.release()

    def _reservation_ended(self, reservation: Reservation) -> None:
        """Queue a pod again whose reservation was released: it is not bound."""
        self._before.release(reservation.uid, settled=reservation.state is not ReservationState.RELEASED)
        pod = reservation.pod
        if not isinstance(pod, ScheduledPod) or pod.info is None or not pod.ours:
            return
        entry = self._entries.pop(reservation.uid, None)
        if reservation.state is not ReservationState.RELEASED:
            return
        self._model.forget(msgspec.structs.replace(pod.info, node_name=reservation.node))
        self._not_placed(pod.metadata.uid)
        if entry is not None:
            self._model.queue.failed(entry, {ERROR}, self._clock.now())
        self._model.requeue(pod.info)
        self._model.wake()
