"""Schedules gangs: takes all waiting pods of a gang from the queue, reserves for all or for none, and binds them.

Nothing waits between the decision and the last reservation, and a gang that has no place holds nothing. So two gangs
never hold each other up. A Binding may still fail, or the process may end between two Bindings: then the gang is half
bound. The rest is placed again; after the gang's time-out its bound pods are evicted, and the gang starts again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import msgspec

from gpuplane import names
from gpuplane.scheduler.binding import Binder
from gpuplane.scheduler.claims.prebinding import PreBinding
from gpuplane.scheduler.filtering import Filtering
from gpuplane.scheduler.gangs import members
from gpuplane.scheduler.gangs.gang import Gang, GangSource, round_text
from gpuplane.scheduler.gangs.groups import GangGroups
from gpuplane.scheduler.gangs.members import GangKey, GangMembers, key_of
from gpuplane.scheduler.gangs.placing import ROOM_CAUSES, GangDecision, GangPlace, failed
from gpuplane.scheduler.gangs.preempt import NO_VICTIMS, NOT_HELPFUL
from gpuplane.scheduler.gangs.rests import GangRests
from gpuplane.scheduler.gangs.timeouts import GangTimeouts
from gpuplane.scheduler.pods.decide import Decision
from gpuplane.scheduler.pods.deciders import Deciders
from gpuplane.scheduler.pods.evict import Evictor
from gpuplane.scheduler.pods.model import PodModel
from gpuplane.scheduler.pods.objects import ScheduledPod
from gpuplane.scheduler.pods.sending import PodBindings
from gpuplane.scheduler.reservation import Reservation, ReservationEvent
from gpuplane.scheduler.reservations import Reservations
from kubekit.errors import KubekitError
from kubekit.kube import Clock
from kubekit.scheduling.podinfo import PodInfo
from kubekit.scheduling.preemption import WAITING, Budget
from kubekit.scheduling.queue import ERROR, GANG, ClusterEvent, QueueEntry


class GangScheduler:
    """
    Args:
        start: runs a task until the scheduler ends.
    """

    def __init__(
        self,
        clock: Clock,
        model: PodModel,
        members: GangMembers,
        deciders: Deciders,
        groups: GangGroups,
        *,
        binder: Binder,
        reservations: Reservations,
        filtering: Filtering,
        evictor: Evictor,
        before: PreBinding,
        budgets: Callable[[], Sequence[Budget]],
        start: Callable[[Coroutine[Any, Any, None], str], None],
        bindings: PodBindings,
    ) -> None:
        self._clock = clock
        self._model = model
        self.members = members
        self.placer = deciders.placer
        self._groups = groups
        self._deciders = deciders
        self._preemption = deciders.gang_preemption
        self._budgets = budgets
        self._binder = binder
        self._reservations = reservations
        self._filtering = filtering
        self._evictor = evictor
        self._before = before
        self._start = start
        self._bindings = bindings
        self._timeouts = GangTimeouts(clock, members, groups, evictor, start)
        self._rests = GangRests(clock, self.group_changed)

    def schedule(self, entry: QueueEntry, pod: ScheduledPod) -> bool:
        """Place the pod and those that have to start with it, or refuse them; False for a pod to decide by itself."""
        key = key_of(pod)
        assert key is not None and pod.gang is not None
        gang = self._groups.gang(pod.metadata.namespace, pod.gang)
        if isinstance(gang, Gang) and gang.alone:
            return False
        pods = self.members.of(key)
        if isinstance(gang, str):
            self._refuse_all({pod.metadata.uid: entry}, pods, GangDecision(message=gang, causes=frozenset({GANG})))
        else:
            self._schedule(gang, entry, pod, pods)
        return True

    def _schedule(self, gang: Gang, entry: QueueEntry, pod: ScheduledPod, pods: list[ScheduledPod]) -> None:
        key = key_of(pod)
        needs = members.needs(pod, gang, pods, self._is_bound)
        if key is not None and self._timeouts.has_passed(key, pods):
            needs = members.GangNeeds(message=f"gang {gang.name}: its bound pods are being evicted")
        entries = {pod.metadata.uid: entry}
        for other in needs.together:
            if other.metadata.uid != pod.metadata.uid and other.info is not None:
                taken = self._model.queue.take(other.info.key)
                if taken is None:  # it is gated, or its Binding failed just now
                    needs = members.GangNeeds(message=f"gang {gang.name}: pod {other.metadata.name} is not ready")
                    break
                entries[other.metadata.uid] = taken
        decision = GangDecision(message=needs.message, causes=frozenset({GANG}))
        if needs.together:
            bound = [one for one in pods if self._is_bound(one) and not one.metadata.deletion_timestamp]
            promised = [self._model.as_promised(one) for one in needs.together]
            decision = self._deciders.gang_places(gang, promised, bound)
            if not decision.places and ERROR not in decision.causes:
                decision = self._make_room(gang, needs.together, bound, decision)
        else:
            self._withdraw(pods)
        reserved: list[tuple[GangPlace, Reservation]] = []
        if decision.places:
            try:
                with self.placer.own_room(needs.together):
                    self._reserve(decision.places, reserved)
            except KubekitError as error:
                decision = failed(error)
        if not decision.places:
            self._refuse_all(entries, pods, decision)
            for _, reservation in reserved:
                self._reservations.apply(reservation, ReservationEvent.REFUSED)
            return
        by_uid = {one.metadata.uid: one for one in needs.together}
        for place, _ in reserved:
            info = by_uid[place.pod.metadata.uid].info
            assert info is not None
            self._model.assume(msgspec.structs.replace(info, node_name=place.node))
        for place, reservation in reserved:
            self._bindings.begin_later(entries[reservation.uid], place.pod, reservation)

    def _make_room(
        self, gang: Gang, together: Sequence[ScheduledPod], bound: Sequence[ScheduledPod], decision: GangDecision
    ) -> GangDecision:
        """Preempt pods of lower priority, if that gives the whole gang places; return what to report meanwhile."""
        if any(pod.info is not None and self._evictor.makes_room(pod.info) for pod in together):
            return decision
        key = key_of(together[0])
        assert key is not None
        if rests := self._rests.message(key):
            return _with_reason(decision, rests)
        began = time.perf_counter()
        try:
            planned = self._preemption.plan(gang, together, bound, self._budgets())
        except KubekitError as error:
            return failed(error)
        if planned.message == NOT_HELPFUL:
            self._rests.begin(key, time.perf_counter() - began, planned.message)
        if planned.places:
            places = [(place.pod, place.node) for place in planned.places]
            self._withdraw(together, write=False)
            others = self._evictor.nominate(places)
            others += self._without_room(others)
            work = self._evictor.carry_out(places, planned.victims, others)
            self._start(work, f"preempt for gang {gang.name} of {together[0].metadata.namespace}")
            return msgspec.structs.replace(decision, causes=decision.causes | ROOM_CAUSES)
        if planned.message != WAITING:
            self._withdraw(together)
        return decision if planned.message == NO_VICTIMS else _with_reason(decision, planned.message)

    def _withdraw(self, pods: Iterable[ScheduledPod], *, write: bool = True) -> None:
        """Keep room for the pods no longer; `write`: also in their status."""
        for pod in pods:
            if pod.info is not None and self._model.is_nominated(pod.info):
                self._model.withdraw(pod.info.key)
                if write:
                    self._start(self._evictor.end_nomination(pod.info), f"end nomination of {pod.shown}")

    def _without_room(self, outbid: Iterable[PodInfo]) -> list[PodInfo]:
        """Withdraw the rest of the nominations of gangs of which one ended; return its pods."""
        found = []
        for key in {key for info in outbid if (key := self.members.key(info.uid)) is not None}:
            for pod in self.members.of(key):
                if pod.info is not None and self._model.is_nominated(pod.info):
                    self._model.withdraw(pod.info.key)
                    found.append(pod.info)
        return found

    def _reserve(self, places: Iterable[GangPlace], reserved: list[tuple[GangPlace, Reservation]]) -> None:
        listed = list(places)
        marks = {}
        if len(listed) > 1:
            marks = {names.GANG_ROUND_ANNOTATION: round_text([place.pod.metadata.uid for place in listed])}
        for place in listed:
            said = marks | self._model.fair.mark(place.pod.info)
            reservation = self._binder.reserve(place.pod, place.node, self._filtering, ReservationEvent.BIND, said)
            reserved.append((place, reservation))
            assert place.pod.info is not None
            self._before.reserve(place.pod.info, place.node)

    def _refuse_all(self, entries: dict[str, QueueEntry], pods: list[ScheduledPod], decision: GangDecision) -> None:
        by_uid = {one.metadata.uid: one for one in pods}
        for uid, entry in entries.items():
            refused = Decision(message=decision.message, causes=decision.causes)
            self._bindings.report_failure(by_uid[uid], refused)
            self._model.queue.failed(entry, decision.causes, self._clock.now())

    def _is_bound(self, pod: ScheduledPod) -> bool:
        return bool(pod.spec.node_name) or (pod.info is not None and self._model.is_assumed(pod.info))

    # -- changes -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Count the time of half bound gangs from now on: this replica leads."""
        self._timeouts.begin()

    def changed(self, old: Any, new: Any) -> None:
        """Handle a change of a pod: wakes the rest of its gang, and begins to count the time of a half bound one."""
        keys = {key for pod in (old, new) if isinstance(pod, ScheduledPod) and (key := key_of(pod)) is not None}
        for key in keys:
            self._timeouts.watch(key)
            if not self.members.of(key):
                self._rests.end(key)
            waiting = {pod.metadata.uid for pod in self.members.of(key) if not pod.spec.node_name}
            if waiting and (new is None or new.spec.node_name):
                self._wake(waiting)

    def group_changed(self, key: GangKey) -> None:
        """Wake the pods of a gang whose PodGroup came, changed or went."""
        if waiting := {pod.metadata.uid for pod in self.members.of(key) if not pod.spec.node_name}:
            self._wake(waiting)

    def kind_changed(self, source: GangSource) -> None:
        """Wake the pods of all gangs with such a PodGroup: the API server serves the kind now, or serves it no more."""
        for key in self.members.names():
            if key[1] is source:
                self.group_changed(key)

    def _wake(self, waiting: set[str]) -> None:
        queue, now = self._model.queue, self._clock.now()
        if queue.notify(ClusterEvent.POD_CHANGED, "", now, lambda entry: entry.pod.uid in waiting):
            self._model.wake()

    def close(self) -> None:
        """Stop the timers."""
        self._timeouts.close()
        self._rests.close()


def _with_reason(decision: GangDecision, why: str) -> GangDecision:
    """Return the decision with the reason why preemption does not help."""
    return msgspec.structs.replace(decision, message=f"{decision.message.rstrip('.')}. {why}")
