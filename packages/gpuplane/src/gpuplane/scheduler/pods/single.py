"""Decides about pods that are placed by themselves, and begins to make room for those that fit nowhere.

A pod that equals one that was refused since the last change is refused for the same reasons. A refused pod of higher
priority preempts others, see `preempt` and `evict`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.defrag.mover import Mover
from gpuplane.scheduler.filtering import Filtering
from gpuplane.scheduler.pods.decide import Decision, choose_node
from gpuplane.scheduler.pods.deciders import Deciders
from gpuplane.scheduler.pods.evict import Evictor
from gpuplane.scheduler.pods.model import PodModel
from gpuplane.scheduler.pods.objects import ScheduledPod
from kubekit.errors import Retryable
from kubekit.scheduling.decide import fit_error
from kubekit.scheduling.preemption import WAITING, Budget, Candidate
from kubekit.scheduling.queue import ERROR


class SinglePods:
    """
    Args:
        start: runs a task until the scheduler ends.
        budgets: returns the disruption budgets.
    """

    def __init__(
        self,
        cluster: Cluster,
        model: PodModel,
        filtering: Filtering,
        deciders: Deciders,
        *,
        evictor: Evictor,
        mover: Mover,
        budgets: Callable[[], Sequence[Budget]],
        start: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self._cluster = cluster
        self._model = model
        self._filtering = filtering
        self._deciders = deciders
        self._evictor = evictor
        self._mover = mover
        self._budgets = budgets
        self._start = start
        self._refused: dict[bytes, Decision] = {}
        self._refused_at: tuple[int, ...] = ()

    def decide(self, pod: ScheduledPod) -> Decision:
        """Return the decision for a pod now; making room for it begins at once."""
        model = self._model
        if pod.trouble or not pod.kind:
            # NB: not kept for equal pods: what is the trouble, such as a volume, is no part of a pod's kind.
            return choose_node(pod, model.cache, self._filtering)
        pod = model.with_nomination(pod)
        nominated = pod.info is not None and bool(pod.info.nominated)
        now = model.cache.revision, self._cluster.ledger.revision, model.changes
        if now != self._refused_at:
            self._refused.clear()
            self._refused_at = now
        # NB: room is reserved for a nominated pod alone, so the answer for equal pods does not hold for it.
        decision = None if nominated else self._refused.get(pod.kind)
        if decision is None:
            refusal = model.fair.refuses(pod.info) if pod.info is not None else ""
            node = self._deciders.ranking.best(pod) if not refusal else None
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
        if self._evictor.makes_room(pod.info) or self._mover.makes_room(pod.info):
            return None
        try:
            planned = self._deciders.victims(pod, decision.found, self._budgets())
        except Retryable:
            return decision
        if isinstance(planned, Candidate):
            places = ((pod, planned.node),)
            others = self._evictor.nominate(places)
            self._start(self._evictor.carry_out(places, planned.victims, others), f"preempt for {pod.shown}")
            return None
        if pod.info.nominated and planned.message != WAITING:
            self._model.withdraw(pod.info.key)
            self._start(self._evictor.end_nomination(pod.info), f"end nomination of {pod.shown}")
        message = fit_error(decision.found, planned.message)
        return msgspec.structs.replace(decision, message=message)
