"""Carries moves out, one step after the other, while this replica leads.

1. The move is proved on the cluster as it is now, and checked against rules and budgets.
2. The place of the replacement is reserved (`holds`), and the pod that waits for the room is nominated to its node, so
   that no pod of lower or equal priority gets it in between. Nothing waits between the first two steps.
3. The move is recorded (`records`), with the pod.
4. The pod is evicted by the Eviction API, so the API server holds disruption budgets. A refusal is tried again.
5. The replacement gets the place as soon as it waits; its Binding has the time of the move.
6. The move ends when the pod is gone and its replacement is bound, or at the end of its time. Then nothing is held.

A move is ordered by the annotation `gpuplane.dev/move` of a pod (`gpuplane defrag` writes it), or by `automatic`. An
annotation is not removed: it has an end. A new leader reserves the places of the recorded moves before any pod is
decided, and goes on with each. It evicts a pod only if the move is proved again; otherwise it holds the place for as
long as an eviction of its predecessor may be carried out. An eviction names the pod's uid, so no pod is evicted twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, Literal

import msgspec

from gpuplane import names
from gpuplane.api.upgrade import unix_time
from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.defrag.candidates import MoveRules, reason_to_stay
from gpuplane.scheduler.defrag.holds import Holds, hold_for
from gpuplane.scheduler.defrag.limits import EVICTION_SECONDS, HOUR, MoveBudget, MoveLimits
from gpuplane.scheduler.defrag.records import MoveRecord, MoveRecords, recorded_pod
from gpuplane.scheduler.defrag.search import Move, MoveSearch
from gpuplane.scheduler.defrag.under_way import MoveUnderWay, pod_of_record, replacements
from gpuplane.scheduler.pods.model import PodModel
from gpuplane.scheduler.pods.movable import MoveOrder, move_times
from gpuplane.scheduler.pods.objects import ScheduledPod
from kubekit.api.core import ObjectReference, Pod
from kubekit.api.raw import RawPod
from kubekit.errors import KubekitError, Retryable, Terminal
from kubekit.kube import Client, Clock, Conflict, EventRecorder, NotFound
from kubekit.kube.errors import TooManyRequests
from kubekit.scheduling.podinfo import PodInfo
from kubekit.scheduling.preemption import Budget
from kubekit.scheduling.queue import ClusterEvent

log = logging.getLogger("gpuplane.scheduler")
AGAIN_SECONDS: Final = 5.0  # until an eviction is tried again that a disruption budget refused
READ_SECONDS: Final = 5.0
LONGEST_SECONDS: Final = 600.0  # for which a place is held, whatever an order says
MOVED, NOT_MOVED = "Moved", "NotMoved"  # reasons of events


class Mover:
    """
    Args:
        budgets: returns the disruption budgets.
        records: where the moves are recorded.
        start: runs a task until the scheduler ends.
    """

    def __init__(
        self,
        client: Client,
        recorder: EventRecorder,
        clock: Clock,
        *,
        cluster: Cluster,
        model: PodModel,
        search: MoveSearch,
        holds: Holds,
        limits: MoveLimits,
        budgets: Callable[[], list[Budget]],
        records: MoveRecords,
        start: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self.limits = limits
        self.rules = MoveRules(limits.most_moves, limits.cool_down_seconds)
        self.budget = MoveBudget(limits)
        self.moved = self.failed = 0
        self.on_end: list[Callable[[], None]] = []
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._cluster = cluster
        self._model = model
        self._search = search
        self._holds = holds
        self.read_budgets = budgets
        self._records = records
        self._start = start
        self._moves: dict[str, MoveUnderWay] = {}  # by the uid of the pod that is moved
        self._orders: dict[str, ScheduledPod] = {}  # by uid: pods to move when the budget allows it
        self._refused: set[tuple[str, MoveOrder]] = set()
        self._running = False
        self._wake = asyncio.Event()
        cluster.pods.add_handler(self._changed)

    # -- what the scheduler asks -------------------------------------------------------------------------------------

    def makes_room(self, info: PodInfo) -> bool:
        """Return whether a pod is being moved to make room for this one."""
        return any(move.room_for == info.key for move in self._moves.values())

    def place(self, pod: ScheduledPod) -> tuple[ScheduledPod, str] | None:
        """Return the pod with its reserved GPUs, and its node.

        None if no place is reserved for it, or if it does not fit there yet. The caller reserves at once.
        """
        hold = self._holds.of(pod)
        if hold is None or pod.info is None:
            return None
        given = self._holds.give(hold, pod, self._model.fair.refuses)
        return None if given is None else (given, hold.move.node)

    def record(self, pod: ScheduledPod) -> dict[str, str]:
        """Return the annotation that records a move, for the Binding of a pod that may be a replacement."""
        now, hold = self.unix_now(), self._holds.of(pod)
        move = self._moves.get(hold.move.pod.metadata.uid) if hold is not None else None
        # Without a hold its place may have been given up before it came.
        record = move.record() if move is not None else next(self._unrecorded(pod.owner), None)
        if record is None or not record.evicted:
            return {}
        earlier = [text for text in record.moved_at.split(",") if text and (unix_time(text) or 0.0) > now - HOUR]
        # A record may say anything, and an annotation that is too long would have the Binding refused.
        evicted_at = record.evicted_at if unix_time(record.evicted_at) is not None else self._now_text()
        return {names.MOVED_ANNOTATION: ",".join((*earlier, evicted_at))}

    def _unrecorded(self, owner: str) -> Iterator[MoveRecord]:
        """Yield the moves of the last hour that ended without a replacement, of pods of this controller."""
        since = self.unix_now() - HOUR
        for one in self._records:
            if owner and one.owner == owner and one.ended and not one.recorded and one.counted > since:
                yield one

    def not_placed(self, uid: str) -> None:
        """Hold the place again of a pod that was not bound to it."""
        self._holds.take_back(uid)

    # -- beginning ---------------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Go on with the moves of earlier leaders, and follow orders; called once, before any pod is decided."""
        known = await self._records.take_over()
        now = self.unix_now()
        pods = [pod for pod in self._cluster.pods.items() if isinstance(pod, ScheduledPod)]
        if known:
            self.budget.recover(min(one.counted, now) for one in self._records if one.ended and one.evicted)
        else:  # the records were deleted
            times = [time for pod in pods for time in move_times(pod.moved_at)]
            self.budget.recover(time for time in times if time > now - HOUR)
        self._running = True
        under_way = [one for one in self._records if not one.ended]
        bound = replacements(under_way, pods)
        for record in under_way:
            try:
                self._go_on(record, bound.get(record.uid))
            except Exception:
                # A record that makes the scheduler fail must not stop it.
                log.exception("move not continued pod=%s", record.uid)
                self._give_up(record)
        for pod in pods:
            self._ordered(pod)

    def _go_on(self, record: MoveRecord, replacement: ScheduledPod | None) -> None:
        """Go on with a move of an earlier leader."""
        now, pod = self.unix_now(), pod_of_record(record)
        if pod is None:
            log.warning("move ended, since its record cannot be read pod=%s", record.uid)
            self._give_up(record)
            return
        move, left = Move(pod, record.node, record.given), max(0.0, min(record.until - now, LONGEST_SECONDS))
        begun = MoveUnderWay(hold_for(move), record.began, now, record.until, self._clock.now() + left)
        begun.manifest, begun.stored, begun.evicting, begun.rest = record.pod, True, True, record.rest
        begun.bound = begun.recorded = replacement is not None
        try:
            if not begun.bound and left:
                # NB: no matter how many moves are recorded, no more pods are evicted than an administrator allows.
                full = "" if self.budget.may_begin(now) else "the budget of moves is used up"
                if not self._is_leaving(begun) and (why := full or self._why_not_now(move, now)):
                    begun.why, begun.evicts_until = why, self._clock.now() + EVICTION_SECONDS
                self._holds.begin(begun.hold)
        except Retryable as error:
            begun.why, begun.over = str(error), True
        self.budget.begin(now)
        self._begin(begun, self._waiting_for(record) if left else None)

    def _give_up(self, record: MoveRecord) -> None:
        """End a recorded move that cannot be gone on with; its pod may have been evicted."""
        now = self.unix_now()
        ended = msgspec.structs.replace(record, pod={}, ended=now, counted=now, evicted=True, failed=True)
        self._records.put(ended)
        self.budget.recover((now,))

    def _why_not_now(self, move: Move, now: float) -> str:
        """Return why the pod of a recorded move is not evicted now."""
        known = self._model.pod(move.pod.shown)
        try:
            return "the pod is gone" if known is None else self._why_not(known, move, now)
        except Retryable as error:
            return str(error)

    def _waiting_for(self, record: MoveRecord) -> ScheduledPod | None:
        """Return the pod that waits for the room of a recorded move, if it still waits."""
        pod = self._model.pod(record.room_for) if record.room_for else None
        return pod if pod is not None and pod.ours and pod.metadata.uid == record.room_uid else None

    def unix_now(self) -> float:
        """Return the wall clock in seconds."""
        return unix_time(self._clock.wall()) or 0.0

    def begin(self, move: Move, seconds: float, room_for: ScheduledPod | None = None, rest: int = -1) -> str:
        """Reserve the place of a move and carry the move out; return why not, empty if it began.

        Args:
            seconds: the longest time for which the place is held.
            room_for: a pod that waits for the room on the node that the pod leaves.
            rest: moves of the same plan that follow; -1 for a move that was ordered.
        """
        now, pod = self.unix_now(), move.pod
        known = self._model.pod(pod.shown)
        if known is None or known.metadata.uid != pod.metadata.uid or known.spec.node_name != move.source:
            return "the pod is gone"
        if pod.metadata.uid in self._moves:
            return "it is being moved already"
        if self._records.why_not:
            return self._records.why_not
        if not self.budget.may_begin(now):
            return "the budget of moves is used up"
        hold = hold_for(move)
        try:
            if why := self._why_not(known, move, now):
                return why
            if room_for is not None and room_for.info is not None and (full := self._model.fair.refuses(room_for.info)):
                return f"it would not help {room_for.shown}: {full}"
            self._holds.begin(hold)
        except Retryable as error:
            return str(error)
        self.budget.begin(now)
        seconds = min(seconds, LONGEST_SECONDS)
        self._begin(MoveUnderWay(hold, now, now, now + seconds, self._clock.now() + seconds, rest=rest), room_for)
        return ""

    def _begin(self, move: MoveUnderWay, room_for: ScheduledPod | None) -> None:
        pod, source, node = move.pod, move.hold.move.source, move.hold.move.node
        self._moves[pod.metadata.uid] = move
        if room_for is not None and room_for.info is not None:
            move.room_for, move.room_uid = room_for.info.key, room_for.metadata.uid
            self._model.nominate(room_for.info, source)
        log.info("moving pod=%s node=%s to=%s for=%s", pod.shown, source, node, move.room_for or "-")
        self._start(self._carry_out(move), f"move {pod.shown}")

    def _why_not(self, pod: ScheduledPod, move: Move, now: float) -> str:
        """Return why the pod is not moved now. Raises Retryable while quotas are unknown."""
        reason = reason_to_stay(msgspec.structs.replace(pod, order=None), self.read_budgets(), now, self.rules)
        if reason:
            return f"the pod stays: {reason}"
        return "" if self._search.proves_move(move) else f"its replacement would not fit {move.node} now"

    def cools_down(self, uid: str) -> bool:
        """Return whether moves for a waiting pod ended a short time ago."""
        since = self.unix_now() - self.limits.cool_down_seconds
        return any(one.room_uid == uid and one.tried and one.ended > since for one in self._records)

    def plan_ended(self, uid: str) -> None:
        """Begin the cool-down of a waiting pod: no move of its plan follows."""
        for one in self._records:
            if one.room_uid == uid and one.rest > 0:
                self._records.put(msgspec.structs.replace(one, rest=0))
        self._start(self._save(), "record moves")

    @property
    def why_not_recorded(self) -> str:
        """Return why no move may begin, since it could not be recorded; empty if moves may."""
        return self._records.why_not

    def is_moving(self, uid: str) -> bool:
        """Return whether the pod's move is under way."""
        return uid in self._moves

    def close(self) -> None:
        """Begin nothing any more."""
        self._running = False

    # -- carrying out ------------------------------------------------------------------------------------------------

    async def _carry_out(self, move: MoveUnderWay) -> None:
        timer = self._clock.call_later(max(0.0, move.deadline - self._clock.now()), lambda: self._expire(move))
        try:
            while not move.over and not move.evicted_at:
                if self._is_leaving(move) or (await self._is_recorded(move) and await self._evicted(move)):
                    move.evicted_at = self._now_text()
                    if move.pod.info is not None:
                        self._model.leaves(move.pod.info)
                elif not move.over:
                    await self._clock.sleep(AGAIN_SECONDS)
            while not move.over and not move.done:
                self._wake.clear()
                await self._wake.wait()
        finally:
            timer.cancel()
            if self._running:  # else the next leader goes on with it
                self._end(move)

    async def _is_recorded(self, move: MoveUnderWay) -> bool:
        """Record the move; return False where it is to be tried again, or where it ends without an eviction."""
        meta = move.pod.metadata
        if move.evicts_until is not None:
            move.over = self._clock.now() >= move.evicts_until
            return False
        if move.stored:
            return True
        try:
            if not move.manifest:
                async with asyncio.timeout(READ_SECONDS):
                    pod = await self._client.get(RawPod, meta.name, meta.namespace)
                if pod.metadata.uid != meta.uid:
                    raise Terminal("the pod is gone")
                move.manifest = recorded_pod(pod)
            # NB: as evicted, since the next leader does not know whether the eviction was sent.
            self._records.put(msgspec.structs.replace(move.record(), evicted=True))
            await self._records.save()
            move.stored = True
        except (Retryable, TimeoutError) as error:
            log.info("move not recorded yet pod=%s: %s", move.pod.shown, error or "no answer")
        except KubekitError as error:
            move.why, move.over = str(error), True
        else:
            return not move.over
        return False

    async def _save(self) -> None:
        """Write the records, and try again until that is done."""
        while True:
            try:
                await self._records.save()
                return
            except Retryable as error:
                log.info("moves not recorded yet: %s", error)
                await self._clock.sleep(AGAIN_SECONDS)
            except KubekitError as error:
                log.warning("moves not recorded: %s", error)
                return

    def _is_leaving(self, move: MoveUnderWay) -> bool:
        """Return whether the pod is gone or terminating; note that it is gone."""
        known = self._model.pod(move.pod.shown)
        if known is None or known.metadata.uid != move.pod.metadata.uid:
            move.gone = True
            return True
        return known.info is not None and known.info.terminating

    def _now_text(self) -> str:
        return f"{self._clock.wall()[:19]}Z"

    async def _evicted(self, move: MoveUnderWay) -> bool:
        """Evict the pod; return False where it is to be tried again."""
        meta = move.pod.metadata
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": meta.name, "namespace": meta.namespace},
            "deleteOptions": {"preconditions": {"uid": meta.uid}},
        }
        before, move.evicting = move.evicting, True
        move.counted = self.budget.sent(move.counted, self.unix_now())
        path = f"{Pod.RESOURCE.path(meta.namespace, meta.name)}/eviction"
        try:
            async with asyncio.timeout(EVICTION_SECONDS):
                await self._client.request("POST", path, {"timeout": f"{EVICTION_SECONDS:g}s"}, body)
        except (NotFound, Conflict):
            return True  # it is gone, and its controller creates another one
        except TooManyRequests as error:
            move.evicting = before  # an earlier one without an answer may still be carried out
            log.info("eviction refused pod=%s: %s", move.pod.shown, error)
            return False
        except (KubekitError, TimeoutError) as error:
            log.warning("eviction failed pod=%s: %s", move.pod.shown, error or "no answer")
            return False
        return True

    def _expire(self, move: MoveUnderWay) -> None:
        move.over = True
        self._wake.set()

    def _end(self, move: MoveUnderWay) -> None:
        """End what is held for the move."""
        pod, node = move.pod, move.hold.move.node
        self._moves.pop(pod.metadata.uid, None)
        self._holds.end(move.hold)
        self.budget.end(move.counted, evicted=move.evicting)
        if move.evicting or move.manifest:  # else it was not recorded
            self._records.put(move.record(self.unix_now()))
            self._records.forget(self.unix_now(), self.limits.cool_down_seconds)
            self._start(self._save(), "record moves")
        if move.done:
            self.moved += 1
            log.info("moved pod=%s to=%s took=%.1fs", pod.shown, node, self.unix_now() - move.began)
            self._event(pod, "Normal", MOVED, f"Moved to {node}: its replacement is bound")
        else:
            self.failed += 1
            late = "its replacement was not bound in time" if move.evicted_at else "it was not evicted in time"
            why = move.why or late
            self._event(pod, "Warning", NOT_MOVED, f"Not moved to {node}: {why}")
        if move.room_for and not any(one.room_for == move.room_for for one in self._moves.values()):
            # A pod that has its room now is bound in a moment; then its reservation ends.
            self._clock.call_later(AGAIN_SECONDS if move.done else 0.0, lambda: self._withdraw(move.room_for))
        self._model.notify(ClusterEvent.GPU_FREED, node)
        self._model.try_all_again()
        self._follow_orders()
        for ended in self.on_end:
            ended()

    def _withdraw(self, key: str) -> None:
        if not any(one.room_for == key for one in self._moves.values()):
            self._model.withdraw(key)

    def _event(self, pod: ScheduledPod, kind: Literal["Normal", "Warning"], reason: str, text: str) -> None:
        meta = pod.metadata
        about = ObjectReference(kind="Pod", api_version="v1", namespace=meta.namespace, name=meta.name, uid=meta.uid)
        self._recorder.event(about, kind, reason, text)

    # -- watching ----------------------------------------------------------------------------------------------------

    def _changed(self, old: Any, new: Any) -> None:
        if not isinstance(new, ScheduledPod):
            if isinstance(old, ScheduledPod):
                self._orders.pop(old.metadata.uid, None)
                self._gone(old.metadata.uid)
            return
        if isinstance(old, ScheduledPod) and old.metadata.uid != new.metadata.uid:
            self._gone(old.metadata.uid)
        if new.spec.node_name:
            self._ordered(new)
            if self._running and (not isinstance(old, ScheduledPod) or not old.spec.node_name):
                self._bound(old, new)

    def _gone(self, uid: str) -> None:
        move = self._moves.get(uid)
        if move is not None and not move.gone:
            move.gone = True
            self._wake.set()
            self._model.try_all_again()  # the replacement may have waited for its quota, or for the node's CPU

    def _bound(self, old: Any, new: ScheduledPod) -> None:
        """Note that the replacement is bound: to its place, or elsewhere."""
        uid, owner = new.metadata.uid, old.owner if isinstance(old, ScheduledPod) else new.owner
        if new.moved_at:
            for record in self._unrecorded(owner):
                self._records.put(msgspec.structs.replace(record, recorded=True))
        space = new.metadata.namespace
        for move in self._moves.values():
            mine = move.hold.taken_by == uid
            # NB: any user can write the uid of another namespace's controller into a pod.
            same = (owner, space) == (move.pod.owner, move.pod.metadata.namespace)
            elsewhere = not move.hold.taken_by and move.evicting and same
            if not move.bound and (mine or elsewhere):
                move.bound, move.recorded = True, bool(new.moved_at)
                self._wake.set()
                return

    # -- orders by annotation ----------------------------------------------------------------------------------------

    def _ordered(self, pod: ScheduledPod) -> None:
        """Remember the order of a pod that is to be moved."""
        uid, order = pod.metadata.uid, pod.order
        if order is None or not self._running or uid in self._moves or (uid, order) in self._refused:
            return
        known = self._orders.get(uid)
        self._orders[uid] = pod
        if known is None or known.order != order:
            self._follow_orders()

    def _follow_orders(self) -> None:
        """Begin the moves that are ordered, as far as the budget goes."""
        for uid, pod in list(self._orders.items()):
            order = pod.order
            if not self._running or order is None or not self.budget.may_begin(self.unix_now()):
                return
            del self._orders[uid]
            if why := self._follow(pod, order):
                self._refused.add((uid, order))
                log.info("not moved pod=%s: %s", pod.shown, why)
                self._event(pod, "Warning", NOT_MOVED, f"Not moved to {order.node}: {why}")

    def _follow(self, pod: ScheduledPod, order: MoveOrder) -> str:
        """Begin the ordered move; return why not."""
        end = unix_time(order.until)
        if end is None or end <= self.unix_now():
            return "the order has ended"
        move = self._search.move_to(pod, order.node, order.gpus)
        if move is None:
            return f"its replacement would not fit {order.node} now"
        room_for = self._model.pod(order.room_for) if order.room_for else None
        waits = room_for is not None and room_for.ours and room_for.info is not None
        return self.begin(move, end - self.unix_now(), room_for if waits and order.room_on == move.source else None)
