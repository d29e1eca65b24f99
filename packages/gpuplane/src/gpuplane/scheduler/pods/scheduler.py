"""The loop: takes a pod from the queue, decides, reserves, and sends its Binding while the next pods are decided.

1. A pod leaves the queue.
2. It is decided on the cache and the ledger, and its node and GPUs are reserved, without waiting in between. So two
   pods never get the same GPU, and the extender, which has the same ledger, sees the reservation at once.
3. Its Binding is sent by a task of its own; at most BINDINGS_AT_ONCE are on their way. If volumes or devices
   have to be written before, the task waits for that first (`prebinding`).
4. The pod is dropped from the queue when the Binding was accepted. It returns to the queue when its reservation ends
   without that: after a refusal at once, after a lost answer when the result is known.

A pod that equals one that was refused since the last change is refused for the same reasons. A refused pod of higher
priority preempts others, see `preempt` and `evict`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import msgspec

from gpuplane.scheduler.binding import Binder
from gpuplane.scheduler.claims.device_binding import DeviceBinder
from gpuplane.scheduler.claims.device_watch import DeviceWatch
from gpuplane.scheduler.claims.prebinding import PreBinding
from gpuplane.scheduler.claims.volume_binding import VolumeBinder
from gpuplane.scheduler.claims.volume_watch import VolumeWatch
from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.defrag.automatic import Defragmenter
from gpuplane.scheduler.defrag.holds import Holds
from gpuplane.scheduler.defrag.limits import MoveLimits
from gpuplane.scheduler.defrag.mover import Mover
from gpuplane.scheduler.defrag.search import MoveSearch
from gpuplane.scheduler.filtering import Filtering
from gpuplane.scheduler.gangs.groups import GangGroups
from gpuplane.scheduler.gangs.members import GangMembers
from gpuplane.scheduler.gangs.placing import GangPlacer
from gpuplane.scheduler.gangs.preempt import GangPreemption
from gpuplane.scheduler.gangs.scheduling import GangScheduler
from gpuplane.scheduler.gangs.victims import GangVictims
from gpuplane.scheduler.pods.decide import Decision, choose_node
from gpuplane.scheduler.pods.evict import Evictor, read_budgets
from gpuplane.scheduler.pods.metrics import TryCounts
from gpuplane.scheduler.pods.model import PodModel
from gpuplane.scheduler.pods.objects import ScheduledPod
from gpuplane.scheduler.pods.preempt import GPUPreemption
from gpuplane.scheduler.pods.ranking import NodeRanking
from gpuplane.scheduler.pods.report import Reporter
from gpuplane.scheduler.policies import Policies
from gpuplane.scheduler.preemption import Preemption
from gpuplane.scheduler.queues.watch import QueueWatch
from gpuplane.scheduler.reservation import Reservation, ReservationEvent, ReservationState
from gpuplane.scheduler.reservations import Reservations
from gpuplane.scheduler.transforms import CachedPod
from kubekit.api.core import Namespace
from kubekit.api.raw import RawBudget
from kubekit.errors import KubekitError, Retryable
from kubekit.kube import Client, Clock, EventRecorder, Informer
from kubekit.scheduling.decide import fit_error
from kubekit.scheduling.preemption import WAITING, choose
from kubekit.scheduling.queue import ERROR, QueueEntry

log = logging.getLogger("gpuplane.scheduler")
BINDINGS_AT_ONCE: Final = 48
_PODS_PER_TURN: Final = 8


class PodScheduler:
    """Schedules the pods that name it, while this replica leads."""

    def __init__(
        self,
        client: Client,
        recorder: EventRecorder,
        clock: Clock,
        *,
        cluster: Cluster,
        reservations: Reservations,
        binder: Binder,
        filtering: Filtering,
        policies: Policies,
        moves: MoveLimits = MoveLimits(),  # noqa: B008 - it is frozen
    ) -> None:
        self.counts = TryCounts()
        self._in_flight = 0
        self.namespaces: Informer[Namespace] = Informer(client, Namespace, clock=clock)
        self._clock = clock
        self._cluster = cluster
        self._reservations = reservations
        self._binder = binder
        self._filtering = filtering
        self._policies = policies
        self._wake = asyncio.Event()
        self.model = PodModel(cluster, filtering, self.namespaces, clock, self._wake.set)
        self.storage = VolumeWatch(client, self.model, clock)
        self.claims = DeviceWatch(client, self.model, clock)
        self._devices = DeviceBinder(client, self.model, self._start)
        volumes = VolumeBinder(client, self.model, clock, self.storage.on_change)
        self._before = PreBinding(volumes, self._devices)
        self._reporter = Reporter(client, recorder, clock, self.model.pod)
        self.queues = QueueWatch(client, recorder, clock, self.model, self.namespaces)
        self.budgets: Informer[RawBudget] = Informer(client, RawBudget, clock=clock)
        self._ranking = NodeRanking(self.model.cache, cluster, filtering)
        away = Preemption(cluster, filtering)
        self._evictor = Evictor(client, clock, self.model, self._reporter)
        search = MoveSearch(self.model.cache, cluster, filtering, policies)
        self.mover = Mover(
            client,
            recorder,
            clock,
            cluster=cluster,
            model=self.model,
            search=search,
            holds=Holds(self.model.cache, cluster, filtering),
            limits=moves,
            budgets=lambda: read_budgets(self.budgets.items()),
            start=self._start,
        )
        self._defragmenter = Defragmenter(clock, cluster, self.model, search, self.mover)
        self._members = GangMembers()
        self.groups = GangGroups(
            client,
            clock,
            lambda key: self.gangs.group_changed(key),
            lambda source: self.gangs.kind_changed(source),
        )
        gang_victims = GangVictims(self.model.cache, self._members, self.groups)
        self._preemption = GPUPreemption(self.model.cache, cluster, filtering, away, self.model.fair, gang_victims)
        placer = GangPlacer(self.model.cache, cluster, filtering, self._ranking)
        self.gangs = GangScheduler(
            clock,
            self.model,
            self._members,
            placer,
            self.groups,
            GangPreemption(self.model.cache, placer, self._preemption, gang_victims, self.model.fair),
            binder=binder,
            reservations=reservations,
            filtering=filtering,
            evictor=self._evictor,
            before=self._before,
            budgets=lambda: read_budgets(self.budgets.items()),
            start=self._start,
            bind=self._bind_together,
            refuse=lambda pod, message, causes: self._report_failure(pod, Decision(message=message, causes=causes)),
        )
        cluster.pods.add_handler(self._members.changed)
        cluster.pods.add_handler(self.gangs.changed)
        self._bindings: dict[str, QueueEntry] = {}  # by uid, until the reservation has ended
        self._slots = asyncio.Semaphore(BINDINGS_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused: dict[bytes, Decision] = {}
        self._refused_at: tuple[int, ...] = ()
        reservations.on_end.append(self._reservation_ended)
        cluster.on_pod.append(self._pod_seen)

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        """Return what has to run, and be synced, before `run`."""
        return (
            self.namespaces,
            self.budgets,
            *self.groups.informers.values(),
            *self.storage.informers,
            *self.claims.informers,
        )

    @property
    def bindings_in_flight(self) -> int:
        """Return how many Bindings have no answer yet."""
        return self._in_flight

    async def run(self) -> None:
        """Schedule until cancelled. Everything has to be known before."""
        self.gangs.begin()
        async with asyncio.TaskGroup() as group:
            self.mover.recover()
            group.create_task(self._reporter.run())
            group.create_task(self.queues.lead())
            group.create_task(self._defragmenter.run())
            group.create_task(self._work())

    async def _work(self) -> None:
        turn = 0
        while True:
            entry = self.model.queue.pop(self._clock.now())
            if entry is None:
                await self._until_woken()
                continue
            try:
                await self._try(entry)
            except Exception:
                # A pod that makes the scheduler fail must not stop the others.
                log.exception("pod not scheduled pod=%s", entry.pod.key)
                self.model.queue.failed(entry, {ERROR}, self._clock.now())
            turn += 1
            if turn % _PODS_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _until_woken(self) -> None:
        self._wake.clear()
        due = self.model.queue.next_due(self._clock.now())
        timer = self._clock.call_later(due, self._wake.set) if due is not None else None
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()

    # -- one pod -----------------------------------------------------------------------------------------------------

    async def _try(self, entry: QueueEntry) -> None:
        await self._slots.acquire()
        binds = False
        try:
            # NB: nothing waits from here to the reservation. While this waited the pod may have gone.
            pod = self.model.pod(entry.pod.key)
            if pod is not None and entry.place == "trying":
                binds = self._decide_and_reserve(entry, pod)
        finally:
            if not binds:
                self._slots.release()

    def _decide_and_reserve(self, entry: QueueEntry, pod: ScheduledPod) -> bool:
        """Return whether a Binding is on its way."""
        if pod.metadata.uid != entry.pod.uid or not pod.ours or pod.metadata.deletion_timestamp:
            self.model.queue.done(entry)
            return False
        if entry.attempts == 1:
            self._policies.seen(pod.request)
        began = time.perf_counter()
        if pod.gang is not None and not pod.trouble and self.gangs.schedule(entry, pod):
            self.counts.decided(time.perf_counter() - began)
            return False
        marks = self.mover.record(pod)
        if (placed := self.mover.place(pod)) is not None:
            pod, node = placed
            decision = Decision(node)
        else:
            decision = self.decide(pod)
        self.counts.decided(time.perf_counter() - began)
        if decision.node:
            try:
                reservation = self._reserve(self.model.as_promised(pod), decision.node, marks)
            except KubekitError as error:
                self.mover.not_placed(pod.metadata.uid)
                decision = Decision(message=str(error), causes=frozenset({ERROR}))
        if not decision.node:
            if decision.found is not None and pod.info is not None:
                self._devices.free_elsewhere(pod.info, decision.found.elsewhere.values())
            self._report_failure(pod, decision)
            self.model.queue.failed(entry, decision.causes, self._clock.now())
            return False
        assert pod.info is not None  # else there is no node
        self.model.assume(msgspec.structs.replace(pod.info, node_name=decision.node))
        if self._before.waits(reservation.uid):
            self._bind_together(entry, pod, reservation)  # its slot is free for others meanwhile
            return False
        self._bindings[pod.metadata.uid] = entry
        self._start(self._bind(entry, pod, reservation), f"bind {pod.shown}")
        return True

    def _reserve(self, pod: ScheduledPod, node: str, marks: Mapping[str, str]) -> Reservation:
        """Reserve the GPUs, volumes and devices of a pod. Raises KubekitError, with nothing reserved.

        `marks` are further annotations of its Binding.
        """
        reservation = self._binder.reserve(pod, node, self._filtering, ReservationEvent.BIND, marks)
        try:
            if pod.info is not None:
                self._before.reserve(pod.info, node)
        except KubekitError:
            self._reservations.apply(reservation, ReservationEvent.REFUSED)
            raise
        return reservation

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def decide(self, pod: ScheduledPod) -> Decision:
        """Return the decision for a pod now; making room for it begins at once."""
        model = self.model
        if pod.trouble or not pod.kind:
            # NB: not kept for equal pods: what is the trouble, such as a volume, is no part of a pod's kind.
            return choose_node(pod, model.cache, self._filtering)
        pod = model.with_nomination(pod)
        nominated = pod.info is not None and bool(pod.info.nominated)
        now = model.cache.revision, self._cluster.ledger.revision, model.changes
        if now != self._refused_at:
            self._refused.clear()
            self._refused_at = now
        # NB: room is kept for a nominated pod alone, so what holds for equal pods does not hold for it.
        decision = None if nominated else self._refused.get(pod.kind)
        if decision is None:
            refusal = model.fair.refuses(pod.info) if pod.info is not None else ""
            node = self._ranking.best(pod) if not refusal else None
            if node is not None:
                return Decision(node)
            wanted = model.as_promised(pod)
            decision = choose_node(wanted, model.cache, self._filtering, random.randrange(1 << 30), refusal=refusal)
            if not decision.node and ERROR not in decision.causes:
                refused = self._make_room(pod, decision)
                if refused is None or nominated:
                    return refused or decision  # NB: an equal pod makes room of its own
                decision = refused
                # A dry run changes the cache and takes the change back; the next change counts again.
                self._refused_at = model.cache.revision, self._cluster.ledger.revision, model.changes
                self._refused[pod.kind] = decision
        return decision

    def _make_room(self, pod: ScheduledPod, decision: Decision) -> Decision | None:
        """Preempt pods of lower priority, if that gives the pod a node.

        Return what to report where that does not help; None while room is made.
        """
        if decision.found is None or pod.info is None:
            return decision
        if self._evictor.makes_room(pod.info) or self.mover.makes_room(pod.info):
            return None
        try:
            planned = self._preemption.plan(pod, decision.found, read_budgets(self.budgets.items()))
        except Retryable:
            return decision
        if planned.candidates:
            chosen = choose(planned.candidates)
            places = ((pod, chosen.node),)
            others = self._evictor.nominate(places)
            self._start(self._evictor.carry_out(places, chosen.victims, others), f"preempt for {pod.shown}")
            return None
        if pod.info.nominated and planned.message != WAITING:
            self.model.withdraw(pod.info.key)
            self._start(self._evictor.end_nomination(pod.info), f"end nomination of {pod.shown}")
        message = fit_error(decision.found, planned.message)
        return msgspec.structs.replace(decision, message=message)

    def _bind_together(self, entry: QueueEntry, pod: ScheduledPod, reservation: Reservation) -> None:
        """Begin to bind a pod that was reserved together with others, or whose volumes or devices are written first."""
        self._bindings[reservation.uid] = entry
        self._start(self._bind_with_slot(entry, pod, reservation), f"bind {pod.shown}")

    async def _bind_with_slot(self, entry: QueueEntry, pod: ScheduledPod, reservation: Reservation) -> None:
        """Write a pod's volumes and devices, and bind it once there is a slot for its Binding."""
        if self._before.waits(reservation.uid) and not await self._bind_first(pod, reservation):
            return
        await self._slots.acquire()
        await self._bind(entry, pod, reservation)

    async def _bind_first(self, pod: ScheduledPod, reservation: Reservation) -> bool:
        """Return whether the pod's volumes and devices are written; if they are not, the pod is queued again."""
        try:
            await self._before.bind(reservation.uid)
        except Retryable as error:
            if not reservation.state.ended:  # else the pod is gone
                self._report_failure(pod, Decision(message=str(error), causes=frozenset({ERROR})))
        except asyncio.CancelledError:
            self._reservations.apply(reservation, ReservationEvent.REFUSED)
            raise
        else:
            return True
        self._reservations.apply(reservation, ReservationEvent.REFUSED)
        return False

    async def _bind(self, entry: QueueEntry, pod: ScheduledPod, reservation: Reservation) -> None:
        self._in_flight += 1
        try:
            await self._binder.post(reservation)
        except KubekitError as error:
            log.info("not bound pod=%s node=%s: %s", pod.shown, reservation.node, error)
            # NB: while the result is unknown the pod may be bound, and then its condition is the API server's.
            if reservation.state is ReservationState.RELEASED:
                message = f'running Bind plugin "DefaultBinder": {error}'
                self._report_failure(pod, Decision(message=message, causes=frozenset({ERROR})))
        else:
            self.counts.results["scheduled"] += 1
            self.model.queue.done(entry)
            self._reporter.scheduled(pod, reservation.node)
            self._binder.report(reservation)
        finally:
            self._in_flight -= 1
            self._slots.release()

    def _report_failure(self, pod: ScheduledPod, decision: Decision) -> None:
        if pod.info is not None:
            self.model.fair.refused(pod.info)
        failed = ERROR in decision.causes
        self.counts.results["error" if failed else "unschedulable"] += 1
        reason = "SchedulerError" if failed else "Unschedulable"
        self._reporter.failed(pod, reason, decision.message)

    def _reservation_ended(self, reservation: Reservation) -> None:
        """Queue a pod again whose reservation was released: it is not bound."""
        self._before.release(reservation.uid, settled=reservation.state is not ReservationState.RELEASED)
        pod = reservation.pod
        if not isinstance(pod, ScheduledPod) or pod.info is None or not pod.ours:
            return
        entry = self._bindings.pop(reservation.uid, None)
        if reservation.state is not ReservationState.RELEASED:
            return
        self.model.forget(msgspec.structs.replace(pod.info, node_name=reservation.node))
        self.mover.not_placed(pod.metadata.uid)
        if entry is not None:
            self.model.queue.failed(entry, {ERROR}, self._clock.now())
        self.model.requeue(pod.info)
        self._wake.set()

    def _pod_seen(self, uid: str, pod: CachedPod | None) -> None:
        if pod is None or pod.spec.node_name:
            self._reporter.ended(uid)

    async def aclose(self) -> None:
        """Stop the tasks that still wait for an answer."""
        self.mover.close()
        self.gangs.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
