"""Preemption that sees shares: the pods to evict so that a more important pod gets the GPUs that it needs.

kube-scheduler counts the GPUs of a node together, so it evicts no pod when only fragments are in the way. Here each way
to make room is tried GPU by GPU: the holders of one GPU (of several GPUs for a pod with whole ones), and all pods of
lower priority, as kube-scheduler does. Of these ways the one counts that breaks the fewest disruption budgets, then the
one with the least important pods, then with the fewest. The rules between nodes are kube-scheduler's.

With queues, pods of another queue are victims only if this one takes back what is guaranteed to it, see
`queues.fair`. Inside a queue the priority decides. A gang that loses too many pods is evicted as a whole.

Nothing is changed: cache and ledger are as before when a function returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.filtering import Filtering
from gpuplane.scheduler.gangs.victims import GangVictims
from gpuplane.scheduler.pods.objects import ScheduledPod
from gpuplane.scheduler.preemption import Preemption
from gpuplane.scheduler.queues.fair import FairQueues, QueueVictims
from kubekit.scheduling import preemption
from kubekit.scheduling.cache import ClusterNode, SchedulerCache
from kubekit.scheduling.check import FilterCheck
from kubekit.scheduling.decide import Found
from kubekit.scheduling.filters import Failure
from kubekit.scheduling.podinfo import PodInfo
from kubekit.scheduling.preemption import Budget, Candidate, PreemptionPlan
from kubekit.scheduling.queue import GPUS

MOST_NODES: Final = 16
"""Nodes with victims to compare for a pod with GPUs. Each takes some milliseconds, and the extender waits for them."""
NO_ROOM: Final = Failure(GPUS, ("No preemption victims found for incoming pod",))


class GPUPreemption:
    """Plans preemption for pods of the scheduler."""

    def __init__(
        self,
        cache: SchedulerCache,
        cluster: Cluster,
        filtering: Filtering,
        away: Preemption,
        fair: FairQueues,
        gangs: GangVictims,
    ) -> None:
        self._fair = fair
        self._gangs = gangs
        self._cache = cache
        self._cluster = cluster
        self._filtering = filtering
        self._away = away

    def plan(self, pod: ScheduledPod, found: Found, budgets: Sequence[Budget]) -> PreemptionPlan:
        """Return the nodes with their victims, or why there are none. Raises Retryable while quotas are unknown."""
        assert pod.info is not None
        info = pod.info
        if not pod.request and not self._fair and not self._gangs:
            return preemption.plan(info, self._cache, found, budgets)
        victims = self._fair.victims_for(info)
        return preemption.plan(
            info,
            self._cache,
            found,
            budgets,
            dry_run=lambda node: self._dry_run(pod, node, budgets, victims),
            most=MOST_NODES,
            by_priority=not self._fair,
        )

    def _dry_run(
        self, pod: ScheduledPod, node: ClusterNode, budgets: Sequence[Budget], victims: QueueVictims
    ) -> Candidate | Failure:
        assert pod.info is not None
        there = preemption.least_important_last(node.pods.values())
        lower = [other for other in there if victims.together([other])]
        if not lower:
            return preemption.NO_VICTIMS
        with self.without(lower):
            if not self._fits(pod, node):
                return NO_ROOM
        found = [
            candidate
            for ways in (lower, *self._by_gpu(node, lower))
            if (candidate := self._fewest(pod, node, victims, ways, budgets)) is not None
        ]
        return preemption.choose(found) if found else NO_ROOM

    def _by_gpu(self, node: ClusterNode, lower: Sequence[PodInfo]) -> Iterator[list[PodInfo]]:
        """Yield the pods of lower priority that hold a GPU, for each GPU; then those of the two, three, ... GPUs that
        are the easiest to free.
        """
        holders: dict[str, list[PodInfo]] = {}
        for pod in lower:
            held = self._cluster.ledger.holding(pod.uid)
            for uuid, _ in held[1].held() if held is not None else ():
                holders.setdefault(uuid, []).append(pod)
        yield from holders.values()
        state = self._cluster.ledger.node(node.name)
        uuids = [gpu.uuid for gpu in state.gpus if gpu.usable] if state is not None else []
        easiest = sorted(uuids, key=lambda uuid: _cost(holders.get(uuid, ())))
        for count in range(2, len(easiest) + 1):
            keys = {pod.key for uuid in easiest[:count] for pod in holders.get(uuid, ())}
            yield [pod for pod in lower if pod.key in keys]

    def _fewest(
        self,
        pod: ScheduledPod,
        node: ClusterNode,
        allowed: QueueVictims,
        ways: Sequence[PodInfo],
        budgets: Sequence[Budget],
    ) -> Candidate | None:
        """Return the victims that have to go, the rest stays; None where even all of them do not suffice.

        A gang that falls below its minimum goes as a whole, also from other nodes.
        """
        victims = allowed.together(ways)
        violating, others = preemption.split(victims, budgets)
        gone = {victim.key: victim for victim in victims}
        with self.without(gone.values()):
            if not self._fits(pod, node):
                return None
        violations = 0
        for group, protected in ((violating, True), (others, False)):
            for victim in group:
                fewer = [other for other in gone.values() if other is not victim]
                with self.without(fewer):
                    stays = self._fits(pod, node)
                if stays:
                    del gone[victim.key]
                else:
                    violations += protected
        if not gone:
            return None
        if mates := self._gangs.mates(gone.values()):
            whole = preemption.least_important_last([*gone.values(), *mates])
            if len(allowed.together(whole)) < len(whole):
                return None
            return Candidate(node.name, tuple(whole), len(preemption.split(whole, budgets)[0]))
        return Candidate(node.name, tuple(preemption.least_important_last(gone.values())), violations)

    def _fits(self, pod: ScheduledPod, node: ClusterNode) -> bool:
        assert pod.info is not None
        if FilterCheck(pod.info, self._cache)(node) is not None or self._fair.refuses(pod.info, plans=True):
            return False
        return not pod.request or self._filtering.allows(pod, node.name)

    @contextlib.contextmanager
    def without(self, pods: Iterable[PodInfo]) -> Iterator[None]:
        """Take the pods off their nodes for as long as the context lasts."""
        gone = list(pods)
        with self._away.away([pod.uid for pod in gone]):
            for pod in gone:
                self._cache.remove(pod.key)
            try:
                yield
            finally:
                for pod in gone:
                    self._cache.place(pod)


def _cost(holders: Sequence[PodInfo]) -> tuple[int, int]:
    return max((pod.priority for pod in holders), default=-(2**31)), len(holders)
