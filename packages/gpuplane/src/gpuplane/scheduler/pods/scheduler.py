"""The loop: takes a pod from the queue, decides, reserves, and sends its Binding while the next pods are decided.

1. A pod leaves the queue.
2. It is decided on the cache and the ledger, and its node and GPUs are reserved, without waiting in between. So two
   pods never get the same GPU, and the extender, which has the same ledger, sees the reservation at once.
3. Its Binding is sent by a task of its own, see `sending`.
4. The pod is dropped from the queue when the Binding was accepted. It returns to the queue when its reservation ends
   without that: after a refusal at once, after a lost answer when the result is known.

`single` decides about pods that are placed by themselves, `gangs.scheduling` about those that start together.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.scheduler.binding import Binder
from gpuplane.scheduler.claims.device_binding import DeviceBinder
from gpuplane.scheduler.claims.device_watch import DeviceWatch
from gpuplane.scheduler.claims.prebinding import PreBinding
from gpuplane.scheduler.claims.take_over import take_over
from gpuplane.scheduler.claims.volume_binding import VolumeBinder
from gpuplane.scheduler.claims.volume_watch import VolumeWatch
from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.defrag.automatic import Defragmenter
from gpuplane.scheduler.defrag.holds import Holds
from gpuplane.scheduler.defrag.limits import MoveLimits
from gpuplane.scheduler.defrag.mover import Mover
from gpuplane.scheduler.defrag.records import MoveRecords
from gpuplane.scheduler.defrag.search import MoveSearch
from gpuplane.scheduler.filtering import Filtering
from gpuplane.scheduler.gangs.groups import GangGroups
from gpuplane.scheduler.gangs.members import GangMembers
from gpuplane.scheduler.gangs.scheduling import GangScheduler
from gpuplane.scheduler.pods.decide import Decision
from gpuplane.scheduler.pods.deciders import Deciders
from gpuplane.scheduler.pods.evict import Evictor, read_budgets
from gpuplane.scheduler.pods.metrics import TryCounts
from gpuplane.scheduler.pods.model import PodModel
from gpuplane.scheduler.pods.objects import ScheduledPod
from gpuplane.scheduler.pods.report import Reporter
from gpuplane.scheduler.pods.sending import PodBindings
from gpuplane.scheduler.pods.single import SinglePods
from gpuplane.scheduler.policies import Policies
from gpuplane.scheduler.queues.watch import QueueWatch
from gpuplane.scheduler.reservation import Reservation, ReservationEvent
from gpuplane.scheduler.reservations import Reservations
from gpuplane.scheduler.transforms import CachedPod
from kubekit.api.core import Namespace
from kubekit.api.raw import RawBudget
from kubekit.errors import KubekitError
from kubekit.kube import Client, Clock, EventRecorder, Informer
from kubekit.scheduling.preemption import Budget
from kubekit.scheduling.queue import ERROR, QueueEntry

log = logging.getLogger("gpuplane.scheduler")
_PODS_PER_TURN: Final = 8


class PodScheduler:
    """Schedules the pods that name it, while this replica leads.

    Args:
        namespace: where the moves of pods are recorded.
    """

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
        namespace: str = names.OPERATOR_NAMESPACE,
    ) -> None:
        self._client = client
        self._clock = clock
        self._reservations = reservations
        self._binder = binder
        self._filtering = filtering
        self._policies = policies
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        # Observed state.
        self.namespaces: Informer[Namespace] = Informer(client, Namespace, clock=clock)
        self.budgets: Informer[RawBudget] = Informer(client, RawBudget, clock=clock)
        self.model = model = PodModel(cluster, filtering, self.namespaces, clock, self._wake.set)
        self.storage = VolumeWatch(client, model, clock)
        self.claims = DeviceWatch(client, model, clock)
        self.queues = QueueWatch(client, recorder, clock, model, self.namespaces)
        self.groups = GangGroups(
            client,
            clock,
            lambda key: self.gangs.group_changed(key),
            lambda source: self.gangs.kind_changed(source),
        )
        members = GangMembers()
        # Writers.
        self.counts = TryCounts()
        self._reporter = Reporter(client, recorder, clock, model.pod)
        self._devices = DeviceBinder(client, model, clock, self._start)
        self._before = PreBinding(VolumeBinder(client, model, clock, self.storage.on_change), self._devices)
        evictor = Evictor(client, clock, model, self._reporter)
        search = MoveSearch(model.cache, cluster, filtering, policies)
        self.mover = Mover(
            client,
            recorder,
            clock,
            cluster=cluster,
            model=model,
            search=search,
            holds=Holds(model.cache, cluster, filtering),
            limits=moves,
            budgets=self._budgets,
            records=MoveRecords(client, clock, namespace),
            start=self._start,
        )
        self._defragmenter = Defragmenter(clock, cluster, model, search, self.mover)
        self.bindings = PodBindings(
            clock,
            model,
            reservations=reservations,
            binder=binder,
            before=self._before,
            reporter=self._reporter,
            counts=self.counts,
            start=self._start,
            not_placed=self.mover.not_placed,
        )
        # Decisions.
        deciders = Deciders(model.cache, cluster, filtering, model.fair, members, self.groups)
        self.single = SinglePods(
            cluster,
            model,
            filtering,
            deciders,
            evictor=evictor,
            mover=self.mover,
            budgets=self._budgets,
            start=self._start,
        )
        self.gangs = GangScheduler(
            clock,
            model,
            members,
            deciders,
            self.groups,
            binder=binder,
            reservations=reservations,
            filtering=filtering,
            evictor=evictor,
            before=self._before,
            budgets=self._budgets,
            start=self._start,
            bindings=self.bindings,
        )
        cluster.pods.add_handler(members.changed)
        cluster.pods.add_handler(self.gangs.changed)
        cluster.on_pod.append(self._pod_seen)

    def _waiting(self) -> set[str]:
        return {info.uid for info in self.model.queue.pods()}

    def _budgets(self) -> list[Budget]:
        return read_budgets(self.budgets.items())

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

    async def run(self) -> None:
        """Schedule until cancelled. Everything has to be known before, and the places of moves reserved."""
        await take_over(self._client, self._clock, self._waiting, self.claims.claims.reached)
        self.gangs.begin()
        async with asyncio.TaskGroup() as group:
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
        await self.bindings.slots.acquire()
        binds = False
        try:
            # NB: nothing waits from here to the reservation. While this waited the pod may have gone.
            pod = self.model.pod(entry.pod.key)
            if pod is not None and entry.place == "trying":
                binds = self._decide_and_reserve(entry, pod)
        finally:
            if not binds:
                self.bindings.slots.release()

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
        marks = self.mover.record(pod) | self.model.fair.mark(pod.info)
        if (placed := self.mover.place(pod)) is not None:
            pod, node = placed
            decision = Decision(node)
        else:
            decision = self.single.decide(pod)
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
            self.bindings.report_failure(pod, decision)
            self.model.queue.failed(entry, decision.causes, self._clock.now())
            return False
        assert pod.info is not None  # else there is no node
        self.model.assume(msgspec.structs.replace(pod.info, node_name=decision.node))
        return self.bindings.begin(entry, pod, reservation)

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
