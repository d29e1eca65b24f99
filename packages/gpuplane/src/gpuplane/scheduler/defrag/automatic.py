"""Moves pods by itself where others wait for room, if the administrator allows it.

Woken by pods that are refused and by moves that end. One plan is carried out at a time, and each of its moves is proved
again before it begins. A pod that waits after its plan failed, or for which there is none, is looked at again after the
cool-down, or when nodes and pods have changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, Final

from gpuplane.api.upgrade import unix_time
from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.defrag.candidates import candidates
from gpuplane.scheduler.defrag.mover import Mover
from gpuplane.scheduler.defrag.search import MovePlan, MoveSearch
from gpuplane.scheduler.pods.model import PodModel
from gpuplane.scheduler.pods.objects import ScheduledPod
from kubekit.errors import Retryable
from kubekit.kube import Clock
from kubekit.kube.clock import Timer

log = logging.getLogger("gpuplane.scheduler")
LOOK_SECONDS: Final = 30.0  # between two searches that find nothing


class Defragmenter:
    """Follows the waiting pods; `run` does nothing unless moves are automatic."""

    def __init__(self, clock: Clock, cluster: Cluster, model: PodModel, search: MoveSearch, mover: Mover) -> None:
        self.plans = 0
        self._clock = clock
        self._cluster = cluster
        self._model = model
        self._search = search
        self._mover = mover
        self._wake = asyncio.Event()
        self._timer: Timer | None = None
        self._failed: dict[str, float] = {}  # by uid of a waiting pod: when moves for it failed
        if mover.limits.automatic:
            mover.on_end.append(self._wake.set)
            cluster.pods.add_handler(self._changed)

    def _changed(self, old: Any, new: Any) -> None:
        """Wake for a pod that is reported to wait."""
        if isinstance(new, ScheduledPod) and new.said[0] == "Unschedulable":
            self._wake.set()

    async def run(self) -> None:
        """Look for moves until cancelled."""
        if not self._mover.limits.automatic:
            return
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                self._again_in(await self._look())
        finally:
            self._stop_timer()

    async def _look(self) -> float:
        """Carry out a plan if there is one; return in how many seconds to look again, 0.0 for at the next event."""
        now, limits = self._mover.unix_now(), self._mover.limits
        if self._mover.budget.under_way >= limits.at_once:
            return 0.0  # the end of a move wakes it
        if wait := self._mover.budget.next_free(now):
            return wait
        pods = [pod for pod in self._cluster.pods.items() if isinstance(pod, ScheduledPod)]
        waiting = sorted(self._waiting(pods, now), key=_order)
        late = [pod for pod in waiting if now - _created(pod) >= limits.after_seconds]
        soonest = min((_created(pod) + limits.after_seconds - now for pod in waiting if pod not in late), default=0.0)
        movable = candidates(pods, self._mover.read_budgets(), now, self._mover.rules).by_node
        hopeless: set[bytes] = set()
        for pod in late if movable else ():
            if pod.kind in hopeless:
                continue
            most = min(limits.most_moves, self._mover.budget.left(now))
            plan = await self._found(pod, movable, most)
            if plan is None:
                hopeless.add(pod.kind)
                continue
            await self._carry_out(plan, pod)
            self._wake.set()  # what waits behind it is looked at on the changed cluster
            return 0.0
        return soonest if soonest > 0.0 else LOOK_SECONDS if late else 0.0

    def _waiting(self, pods: list[ScheduledPod], now: float) -> Iterator[ScheduledPod]:
        """Yield the pods that were refused, and for which no moves failed a short time ago."""
        cool_down = self._mover.limits.cool_down_seconds
        self._failed = {uid: time for uid, time in self._failed.items() if now < time + cool_down}
        for pod in pods:
            if not pod.ours or pod.info is None or pod.info.terminating or pod.gang is not None:
                continue
            waits = pod.said[0] == "Unschedulable" and not self._model.fair.refuses(pod.info)
            if waits and pod.metadata.uid not in self._failed and not self._mover.cools_down(pod.metadata.uid):
                yield pod

    async def _found(self, pod: ScheduledPod, movable: dict[str, list[ScheduledPod]], most: int) -> MovePlan | None:
        """Return the plan for a pod; other work goes on between the steps of the search."""
        search = self._search.room_for(pod, movable, most)
        try:
            while True:
                next(search)
                await asyncio.sleep(0)
        except StopIteration as end:
            plan: MovePlan | None = end.value
            return plan
        except Retryable:
            return None

    async def _carry_out(self, plan: MovePlan, pod: ScheduledPod) -> None:
        """Begin one move after the other; stop when what is left of the plan does not hold any more."""
        self.plans += 1
        log.info("plan pod=%s node=%s moves=%d", pod.shown, plan.node, len(plan.moves))
        for at, move in enumerate(plan.moves):
            rest = MovePlan(plan.moves[at:], plan.node, pod)
            try:
                why = "" if self._search.prove(rest) else "the plan does not hold any more"
                why = why or self._mover.begin(move, self._mover.limits.hold_seconds, pod, len(plan.moves) - at - 1)
            except Retryable as error:
                why = str(error)
            if why:
                log.info("plan ended pod=%s move=%s: %s", pod.shown, move.pod.shown, why)
                self._failed[pod.metadata.uid] = self._mover.unix_now()
                self._mover.plan_ended(pod.metadata.uid)
                return
            failed = self._mover.failed
            while self._mover.is_moving(move.pod.metadata.uid):
                await self._wake.wait()
                self._wake.clear()
            if self._mover.failed != failed:
                self._failed[pod.metadata.uid] = self._mover.unix_now()
                return
        self._failed[pod.metadata.uid] = self._mover.unix_now()

    def _again_in(self, seconds: float) -> None:
        self._stop_timer()
        if seconds > 0.0:
            self._timer = self._clock.call_later(seconds, self._wake.set)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _created(pod: ScheduledPod) -> float:
    assert pod.info is not None
    return unix_time(pod.info.created) or 0.0


def _order(pod: ScheduledPod) -> tuple[int, float, str]:
    assert pod.info is not None
    return -pod.info.priority, _created(pod), pod.shown
