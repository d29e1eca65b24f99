"""Counts the pods of the scheduler's cache by queue: whose pod is next, which pod waits, which pods may be reclaimed.

While there are no queues, nothing is counted and nothing is changed.

Invariants:

- The holdings of a queue are the sum over the pods that the cache has placed, also while a dry run takes pods off.
- A pod counts with what it needed when it was placed, until it is removed.
- No pod is placed by this scheduler that exceeds the limit of a queue above it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.queues.capacity import ClusterCapacity, gpu_memory_mib
from gpuplane.scheduler.queues.history import Average, QueueHistory, after
from gpuplane.scheduler.queues.shares import QueueSums, next_queue, plus, shown
from gpuplane.scheduler.queues.tree import NOTHING, OUTSIDE, Amounts, Eviction, QueueTree
from gpuplane.sharing import Request
from kubekit.kube import Clock
from kubekit.scheduling.podinfo import PodInfo

SYSTEM: Final = "system/"  # no name of a queue
SYSTEM_PRIORITY: Final = 2_000_000_000
"""Pods of system-cluster-critical and system-node-critical come before all queues, and no queue holds them up."""
PROMISED_PRIORITY: Final = SYSTEM_PRIORITY - 2
"""Of the room that is reserved for a pod while its victims end: pods of all queues leave it alone."""


class CountedPod(msgspec.Struct, frozen=True):
    """A placed pod, and what it counts. `leaves`: it is being deleted."""

    queue: str
    amounts: Amounts
    leaves: bool


class QueueVictims:
    """The pods that may be evicted for one pod: of other queues those that borrow, of its own those of lower priority.

    Pods that belong to no queue are evicted by priority alone, and so are all for a system pod.

    Args:
        queue, entitled: the pod's queue, and the queues above it that are within their guarantee with the pod.
        sums: what queues hold without the pods that leave already.
    """

    def __init__(
        self,
        pod: PodInfo,
        queue: str,
        entitled: frozenset[str],
        sums: QueueSums,
        counted: Mapping[str, CountedPod],
    ) -> None:
        self._pod = pod
        self._queue = queue
        self._entitled = entitled
        self._sums = sums
        self._counted = counted

    def together(self, pods: Sequence[PodInfo]) -> list[PodInfo]:
        """Return those of the pods that may be evicted together, so that no queue falls below its guarantee.

        Args:
            pods: the most important first; the least important are evicted first, and the order stays.
        """
        if not self._sums.tree:
            return [other for other in pods if other.priority < self._pod.priority]
        left, found = self._sums, []
        for other in reversed(pods):
            known = self._counted.get(other.uid)
            if known is None or not self._may_evict(left, other, known):
                continue
            found.append(other)
            if not known.leaves and self._sums.tree.whole(known.queue) != self._sums.tree.whole(self._queue):
                left = left.copy() if left is self._sums else left
                left.add(known.queue, known.amounts, -1)
        return found[::-1]

    def _may_evict(self, left: QueueSums, other: PodInfo, known: CountedPod) -> bool:
        lower, tree = other.priority < self._pod.priority, left.tree
        if self._pod.priority >= SYSTEM_PRIORITY or known.queue == OUTSIDE:
            return lower
        if tree.whole(known.queue) == tree.whole(self._queue):
            return lower and tree.inside(self._queue) is not Eviction.NEVER
        policy = tree.reclaim(self._queue)
        if other.priority >= SYSTEM_PRIORITY or policy is Eviction.NEVER or (policy is Eviction.LOWER and not lower):
            return False
        mine, theirs = left.sides(self._queue, known.queue)
        if mine[-1] not in self._entitled:
            return False
        return known.leaves or all(left.lends(name, known.amounts) for name in theirs)


class FairQueues:
    """The queues of the pod scheduler.

    Args:
        request_of: the request for GPUs of a pod of the cluster, by namespace and name.
        promised: the pods that wait for room that was made for them.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        request_of: Callable[[str], Request],
        promised: Callable[[], Sequence[PodInfo]],
    ) -> None:
        self._promised = promised
        self.follows_kueue = False  # whether there are objects of Kueue
        self.tree = QueueTree()
        self.sums = QueueSums(self.tree)
        self.capacity = ClusterCapacity()
        self._cluster = cluster
        self._clock = clock
        self._request_of = request_of
        self._pods: dict[str, CountedPod] = {}
        self._histories: dict[str, QueueHistory] = {}
        self._tries = 0
        self._passed_over: dict[str, int] = {}
        self._lanes = 1

    def __bool__(self) -> bool:
        return bool(self.tree)

    # -- the tree and what counts -------------------------------------------------------------------------------------

    def set_tree(self, tree: QueueTree, placed: Iterable[PodInfo]) -> None:
        """Use other queues from now on, and count the placed pods again."""
        now = self._clock.now()
        self._histories = {name: self._history(name, now) for name in (*(queue.name for queue in tree), OUTSIDE)}
        self.tree, self.sums = tree, QueueSums(tree)
        self._pods.clear()
        self._passed_over.clear()
        if tree:
            for info in placed:
                self._add(info)

    def counted(self, info: PodInfo, sign: int) -> None:
        """Count a pod that is placed (1), or that is removed (-1)."""
        if not self.tree:
            return
        if sign > 0:
            self._add(info)
        elif (known := self._pods.pop(info.uid, None)) is not None:
            self._count(known, -1)

    def _add(self, info: PodInfo) -> None:
        known = CountedPod(self.queue_of(info), self.amounts(info), info.terminating)
        self._pods[info.uid] = known
        self._count(known, 1)

    def _count(self, pod: CountedPod, sign: int) -> None:
        now = self._clock.now()
        for name in self.tree.path(pod.queue):
            self._histories[name] = self._history(name, now)
        self.sums.add(pod.queue, pod.amounts, sign)

    def _history(self, name: str, now: float) -> QueueHistory:
        known = self._histories.get(name) or QueueHistory(at=now)
        return after(known, self.sums.held(name), now, self.tree.half_life_s(name))

    def average(self, queue: str) -> Average:
        """Return what the queue held over time."""
        return self._history(queue, self._clock.now()).average

    def remember(self, queue: str, average: Average) -> None:
        """Set what a queue held over time, as an earlier leader wrote it."""
        self._histories[queue] = QueueHistory(average, self._clock.now())

    # -- pods --------------------------------------------------------------------------------------------------------

    def queue_of(self, info: PodInfo) -> str:
        """Return the queue of a pod; OUTSIDE for none."""
        return self.tree.of(info.namespace, info.labels.get(names.KUEUE_QUEUE_LABEL, ""))

    def mark(self, info: PodInfo | None) -> dict[str, str]:
        """Return the annotation of a pod's Binding by which later leaders know its queue, whatever its label says."""
        if not self.tree or info is None:
            return {}
        return {names.BOUND_QUEUE_ANNOTATION: info.labels.get(names.KUEUE_QUEUE_LABEL, "")}

    def amounts(self, info: PodInfo) -> Amounts:
        """Return what a pod counts: on its node, or the most that it may count while it waits."""
        request = self._request_of(info.key)
        core, node = request.core, info.node_name
        if node and request:
            core = self._cluster.usage.place(node).worth(core, by_count=request.by_count)
        memory = gpu_memory_mib(request, self.capacity.largest_gpu_mib(node)) if request else 0
        return info.requests.get("cpu", 0), info.requests.get("memory", 0), core, memory

    def refuses(self, *pods: PodInfo, plans: bool = False) -> str:
        """Return why pods of one queue have to wait, whatever is free; empty if they need not.

        Room that is reserved for other pods counts as held, but not for a pod with reserved room itself.

        Args:
            plans: whether room for the pod is only planned, so that it has no promise yet.
        """
        if not self.tree or not pods or pods[0].priority >= SYSTEM_PRIORITY:
            return ""
        queue, amounts = self.queue_of(pods[0]), NOTHING
        local_queue = pods[0].labels.get(names.KUEUE_QUEUE_LABEL, "")
        if self.follows_kueue and local_queue and not self.tree.has_local_queue(pods[0].namespace, local_queue):
            return f"LocalQueue {local_queue} of label {names.KUEUE_QUEUE_LABEL} does not exist"
        if stopped := self.tree.stopped(queue):
            return f"queue {queue}: {stopped}"
        for info in pods:
            amounts = plus(amounts, self.amounts(info))
        sums = self.sums
        if plans or all(other.uid != pods[0].uid for other in self._promised()):
            sums = self._with_promises(*pods)
        found = sums.over_limit(queue, amounts)
        if found is None:
            return ""
        name, at = found
        where = f"queue {name}" if name == queue else f"queue {queue} of {name}: {name}"
        limit = self.tree.limit(name)[at] or 0
        who = "this pod needs" if len(pods) == 1 else f"these {len(pods)} pods need"
        return f"{where} {_state(sums, name, at)}, and {who} {shown(amounts[at], at)} of at most {shown(limit, at)}"

    def _with_promises(self, *pods: PodInfo) -> QueueSums:
        """Return what queues hold once the other pods that room was made for have it."""
        sums, own = self.sums, {info.uid for info in pods}
        for other in self._promised():
            if other.uid not in own:
                sums = sums.copy() if sums is self.sums else sums
                sums.add(self.queue_of(other), self.amounts(other))
        return sums

    # -- victims -----------------------------------------------------------------------------------------------------

    def victims_for(self, info: PodInfo, together: Sequence[PodInfo] = ()) -> QueueVictims:
        """Return which pods may be evicted for a pod.

        Args:
            together: other pods of its queue that are placed with it, or not at all.
        """
        queue, promised, staying = self.queue_of(info), self._with_promises(info, *together), self.sums
        leaving = [pod for pod in self._pods.values() if pod.leaves]
        for pod in leaving:
            staying = staying.copy() if staying is self.sums else staying
            staying.add(pod.queue, pod.amounts, -1)
        amounts = self.amounts(info)
        for other in together:
            amounts = plus(amounts, self.amounts(other))
        entitled = frozenset(name for name in self.tree.path(queue) if promised.is_within(name, amounts))
        return QueueVictims(info, queue, entitled, staying, self._pods)

    def reclaims(self, info: PodInfo, victim: PodInfo) -> str:
        """Return why a pod of another queue is evicted; empty where the priority is the reason."""
        mine, theirs = self.tree.whole(self.queue_of(info)), self.tree.whole(self.queue_of(victim))
        if not self.tree or mine == theirs or OUTSIDE in (mine, theirs) or info.priority >= SYSTEM_PRIORITY:
            return ""
        return f"queue {mine} takes back what is guaranteed to it and queue {theirs} has borrowed"

    # -- turns -------------------------------------------------------------------------------------------------------

    def lane(self, pod: PodInfo) -> str:
        """Return the lane of a pod in the scheduler's queue; all pods have the same one while there are no queues."""
        if not self.tree:
            return OUTSIDE
        return SYSTEM if pod.priority >= SYSTEM_PRIORITY else self.queue_of(pod)

    def next(self, lanes: Mapping[str, float]) -> str:
        """Return the lane whose pod is tried next."""
        if SYSTEM in lanes:
            return SYSTEM
        self._tries += 1
        ready = {lane: place for lane, place in lanes.items() if self._passed_over.get(lane, 0) < self._tries}
        self._lanes = len(lanes)
        averages = {name: self.average(name) for name in self._histories if self.tree.half_life_s(name) > 0}
        return next_queue(self.sums, ready or lanes, self.capacity.total, averages)

    def refused(self, info: PodInfo) -> None:
        """Note that a pod found no place: each other queue with pods to try comes before its queue's next pod."""
        if self.tree:
            self._passed_over[self.lane(info)] = self._tries + self._lanes - 1


def _state(sums: QueueSums, name: str, at: int) -> str:
    """Return what a queue holds, what is guaranteed and what is borrowed of a resource, for people."""
    guaranteed = sums.tree.guaranteed(name)[at] or 0
    return (
        f"holds {shown(sums.held(name)[at], at)} ({shown(guaranteed, at)} guaranteed, "
        f"{shown(sums.borrowed(name)[at], at)} borrowed)"
    )


def in_queue_of(info: PodInfo, placed: PodInfo) -> PodInfo:
    """Return a placed pod with the label of its queue that it had when it was placed.

    Its tenant may change the label while it runs, and could fill a queue again and again.
    """
    return with_local_queue(info, placed.labels.get(names.KUEUE_QUEUE_LABEL, ""))


def with_local_queue(info: PodInfo, local_queue: str) -> PodInfo:
    """Return the pod with a label that names the local queue; without that label if it is empty."""
    name = names.KUEUE_QUEUE_LABEL
    if info.labels.get(name, "") == local_queue:
        return info
    labels = {key: value for key, value in info.labels.items() if key != name}
    if local_queue:
        labels[name] = local_queue
    return msgspec.structs.replace(info, labels=labels)
