"""Carries moves out, one step after the other, while this replica leads.

1. The move is proved on the cluster as it is now, and checked against rules and budgets.
2. The place of the replacement is reserved (`holds`), and the pod that waits for the room is nominated to its node, so
   that no pod of lower or equal priority gets it in between. Nothing waits between the first two steps.
3. The pod is evicted by the Eviction API, so the API server holds disruption budgets. A refusal is tried again.
4. The replacement gets the place as soon as it waits; its Binding records the move.
5. The move ends when the pod is gone and its replacement is bound, or at the end of its time. Then nothing is held.

A move is ordered by the annotation `gpuplane.dev/move` of a pod (`gpuplane defrag` writes it), or by `automatic`. An
annotation is not removed: it has an end. All state is in memory, so a process that starts again holds nothing. It
follows annotations that are still due. An eviction names the pod's uid, so no pod is evicted twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Literal

import msgspec

from gpuplane import names
from gpuplane.api.upgrade import unix_time
from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.defrag.candidates import MoveRules, reason_to_stay
from gpuplane.scheduler.defrag.holds import Holds, ReservedPlace, hold_for
from gpuplane.scheduler.defrag.limits import EVICTION_SECONDS, HOUR, MoveBudget, MoveLimits
from gpuplane.scheduler.defrag.search import Move, MoveSearch
from gpuplane.scheduler.pods.model import PodModel
from gpuplane.scheduler.pods.movable import MoveOrder, move_times
from gpuplane.scheduler.pods.objects import ScheduledPod
from kubekit.api.core import ObjectReference, Pod
from kubekit.errors import KubekitError, Retryable
from kubekit.kube import Client, Clock, Conflict, EventRecorder, NotFound
from kubekit.kube.errors import TooManyRequests
from kubekit.scheduling.podinfo import PodInfo
from kubekit.scheduling.preemption import Budget
from kubekit.scheduling.queue import ClusterEvent

log = logging.getLogger("gpuplane.scheduler")
AGAIN_SECONDS: Final = 5.0  # until an eviction is tried again that a disruption budget refused
LONGEST_SECONDS: Final = 600.0  # for which a place is held, whatever an order says
MOVED, NOT_MOVED = "Moved", "NotMoved"  # reasons of events


class MoveUnderWay(msgspec.Struct):
    """A move from its reservation to its end. `deadline` is of the monotonic clock; `began`, and the time at which the
    budget counts it, are Unix time.
    """

    hold: ReservedPlace
    began: float
    counted: float
    deadline: float
    room_for: str = ""  # namespace/name of the pod that waits for the room
    evicted_at: str = ""
    evicting: bool = False  # an eviction was sent, and may be carried out
    gone: bool = False
    bound: bool = False
    recorded: bool = False  # the replacement has the annotation
    over: bool = False

    @property
    def pod(self) -> ScheduledPod:
        return self.hold.move.pod

    @property
    def done(self) -> bool:
        return self.gone and self.bound


class Mover:
    """
    Args:
        budgets: returns the disruption budgets.
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
        self._start = start
        self._moves: dict[str, MoveUnderWay] = {}  # by the uid of the pod that is moved
        self._orders: dict[str, ScheduledPod] = {}  # by uid: pods to move when the budget allows it
        self._refused: set[tuple[str, MoveOrder]] = set()
        self._unrecorded: list[MoveUnderWay] = []  # ended, and no pod says so yet
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
        if move is None and pod.owner:
            # Its place was given up before it came.
            self._unrecorded = [one for one in self._unrecorded if one.counted > now - HOUR]
            move = next((one for one in self._unrecorded if one.pod.owner == pod.owner), None)
        if move is None or not move.evicting:
            return {}
        earlier = [text for text in move.pod.moved_at.split(",") if text and (unix_time(text) or 0.0) > now - HOUR]
        return {names.MOVED_ANNOTATION: ",".join((*earlier, move.evicted_at or self._now_text()))}

    def not_placed(self, uid: str) -> None:
        """Hold the place again of a pod that was not bound to it."""
        self._holds.take_back(uid)

    # -- beginning ---------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Learn the moves of the last hour, and follow orders; called once, when the cluster is known."""
        now = self.unix_now()
        pods = [pod for pod in self._cluster.pods.items() if isinstance(pod, ScheduledPod)]
        times = [time for pod in pods for time in move_times(pod.moved_at)]
        self.budget.recover([time for time in times if time > now - HOUR], now)
        self._running = True
        for pod in pods:
            self._ordered(pod)

    def unix_now(self) -> float:
        """Return the wall clock in seconds."""
        return unix_time(self._clock.wall()) or 0.0

    def begin(self, move: Move, seconds: float, room_for: ScheduledPod | None = None) -> str:
        """Reserve the place of a move and carry the move out; return why not, empty if it began.

        Args:
            seconds: the longest time for which the place is held.
            room_for: a pod that waits for the room on the node that the pod leaves.
        """
        now, pod = self.unix_now(), move.pod
        known = self._model.pod(pod.shown)
        if known is None or known.metadata.uid != pod.metadata.uid or known.spec.node_name != move.source:
            return "the pod is gone"
        if pod.metadata.uid in self._moves:
            return "it is being moved already"
        hold = hold_for(move)
        # A scheduler that starts again follows the order of a pod that was evicted, and only holds the place.
        leaves = known.order is not None and known.info is not None and known.info.terminating
        try:
            if not leaves and (why := self._why_not(known, move, now)):
                return why
            if room_for is not None and room_for.info is not None and (full := self._model.fair.refuses(room_for.info)):
                return f"it would not help {room_for.shown}: {full}"
            self._holds.begin(hold)
        except Retryable as error:
            return str(error)
        self.budget.begin(now)
        begun = MoveUnderWay(hold, now, now, self._clock.now() + min(seconds, LONGEST_SECONDS))
        if leaves:
            begun.evicting, begun.evicted_at = True, self._now_text()
        self._moves[pod.metadata.uid] = begun
        if room_for is not None and room_for.info is not None:
            begun.room_for = room_for.info.key
            self._model.nominate(room_for.info, move.source)
        log.info("moving pod=%s node=%s to=%s for=%s", pod.shown, move.source, move.node, begun.room_for or "-")
        self._start(self._carry_out(begun), f"move {pod.shown}")
        return ""

    def _why_not(self, pod: ScheduledPod, move: Move, now: float) -> str:
        """Return why the pod is not moved now. Raises Retryable while quotas are unknown."""
        reason = reason_to_stay(msgspec.structs.replace(pod, order=None), self.read_budgets(), now, self.rules)
        if reason:
            return f"the pod stays: {reason}"
        if not self.budget.may_begin(now):
            return "the budget of moves is used up"
        return "" if self._search.proves_move(move) else f"its replacement would not fit {move.node} now"

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
                if self._is_leaving(move) or await self._evicted(move):
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
            self._end(move)

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
        if move.evicting and not move.recorded:
            self._unrecorded.append(move)
        if move.done:
            self.moved += 1
            log.info("moved pod=%s to=%s took=%.1fs", pod.shown, node, self.unix_now() - move.began)
            self._event(pod, "Normal", MOVED, f"Moved to {node}: its replacement is bound")
        else:
            self.failed += 1
            why = "its replacement was not bound in time" if move.evicted_at else "it was not evicted in time"
            self._event(pod, "Warning", NOT_MOVED, f"Not moved to {node}: {why}")
        if move.room_for and not any(one.room_for == move.room_for for one in self._moves.values()):
            # A pod that has its room now is bound in a moment; nothing is kept for one that is not.
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
            if (self._moves or self._unrecorded) and (not isinstance(old, ScheduledPod) or not old.spec.node_name):
                self._bound(old, new)

    def _gone(self, uid: str) -> None:
        move = self._moves.get(uid)
        if move is not None and not move.gone:
            move.gone = True
            self._wake.set()
            self._model.try_all_again()  # the replacement may have waited for its quota, or for the node's CPU

    def _bound(self, old: Any, new: ScheduledPod) -> None:
        """Note that the replacement is bound: to its place, or elsewhere."""
        if new.moved_at:
            self._unrecorded = [one for one in self._unrecorded if one.pod.owner != new.owner]
        uid, owner = new.metadata.uid, old.owner if isinstance(old, ScheduledPod) else new.owner
        for move in self._moves.values():
            mine = move.hold.taken_by == uid
            elsewhere = not move.hold.taken_by and move.evicting and owner == move.pod.owner
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
