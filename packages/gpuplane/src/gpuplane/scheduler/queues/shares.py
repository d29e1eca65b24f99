"""The amounts that queues hold and borrow, and whose pod is next: dominant resource fairness down a tree. Pure.

The dominant share of a queue is its largest part of the cluster among the four resources. At each level the queue with
the lowest share for its weight is next; before all others come queues that hold less than their guarantee. A queue
holds its guarantee when it holds all of one resource in it. Its holdings beyond that are borrowed.

Source: Ghodsi et al., "Dominant Resource Fairness: Fair Allocation of Multiple Resource Types", 2011.

Invariant: what a queue holds is the sum over the pods that were added to it and to the queues below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gpuplane.scheduler.queues.tree import NOTHING, OUTSIDE, RESOURCES, Amounts, QueueTree

_ALL: Final = range(len(RESOURCES))


def plus(one: Amounts, other: Amounts, sign: int = 1) -> Amounts:
    """Return the sum, or with sign -1 the difference."""
    return (
        one[0] + sign * other[0],
        one[1] + sign * other[1],
        one[2] + sign * other[2],
        one[3] + sign * other[3],
    )


def dominant_share(held: Sequence[float], capacity: Amounts) -> float:
    """Return the largest part of the cluster, 0 to 1; of a resource that the cluster lacks nothing counts."""
    return max((held[at] / capacity[at] for at in _ALL if capacity[at] > 0), default=0.0)


class QueueSums:
    """The amounts that each queue of a tree holds."""

    def __init__(self, tree: QueueTree) -> None:
        self.tree = tree
        self._held: dict[str, Amounts] = {}

    def held(self, queue: str) -> Amounts:
        return self._held.get(queue, NOTHING)

    def add(self, queue: str, amounts: Amounts, sign: int = 1) -> None:
        """Count amounts of a pod to the queue and to all above it; with sign -1 take them back."""
        for name in self.tree.path(queue):
            self._held[name] = plus(self.held(name), amounts, sign)

    def copy(self) -> QueueSums:
        """Return equal sums that change on their own."""
        made = QueueSums(self.tree)
        made._held = dict(self._held)
        return made

    # -- guarantees --------------------------------------------------------------------------------------------------

    def is_below(self, queue: str) -> bool:
        """Return whether the queue holds less than its guarantee in each resource of it."""
        bounds, held = self.tree.guaranteed(queue), self.held(queue)
        named = [(held[at], bound) for at in _ALL if (bound := bounds[at])]
        return bool(named) and all(one < bound for one, bound in named)

    def borrowed(self, queue: str) -> Amounts:
        """Return what the queue holds beyond its guarantee: all of a resource that is not guaranteed to it."""
        bounds, held = self.tree.guaranteed(queue), self.held(queue)
        cpu, memory, gpus, gpu_memory = (max(0, held[at] - (bounds[at] or 0)) for at in _ALL)
        return cpu, memory, gpus, gpu_memory

    def is_within(self, queue: str, pod: Amounts) -> bool:
        """Return whether the queue is within its guarantee with one more pod.

        A pod that needs none of the guaranteed resources is not.
        """
        bounds, held = self.tree.guaranteed(queue), self.held(queue)
        needed = [at for at in _ALL if bounds[at] is not None and pod[at]]
        return bool(needed) and all(held[at] + pod[at] <= (bounds[at] or 0) for at in needed)

    def lends(self, queue: str, pod: Amounts) -> bool:
        """Return whether the queue holds its guarantee without this pod of it: the pod runs on what is borrowed."""
        bounds, held = self.tree.guaranteed(queue), self.held(queue)
        needed = [at for at in _ALL if bounds[at] is not None and pod[at]]
        return not needed or any(held[at] - pod[at] >= (bounds[at] or 0) for at in needed)

    def over_limit(self, queue: str, pod: Amounts) -> tuple[str, int] | None:
        """Return the queue whose limit forbids one more pod, and the resource (by position); None if none does."""
        for name in self.tree.path(queue):
            bounds, held = self.tree.limit(name), self.held(name)
            for at in _ALL:
                bound = bounds[at]
                if bound is not None and pod[at] and held[at] + pod[at] > bound:
                    return name, at
        return None

    # -- reclaiming --------------------------------------------------------------------------------------------------

    def sides(self, one: str, other: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the paths of two queues up to where they meet, the lowest queue first, without the common part."""
        mine, theirs = self.tree.path(one), self.tree.path(other)
        common = set(mine) & set(theirs)
        return tuple(q for q in mine if q not in common), tuple(q for q in theirs if q not in common)

    def is_entitled(self, queue: str, pod: Amounts) -> bool:
        """Return whether the pod may have the room of other queues' pods at some level of the tree."""
        return any(self.is_within(name, pod) for name in self.tree.path(queue))


def next_queue(
    sums: QueueSums,
    waiting: Mapping[str, float],
    capacity: Amounts,
    averages: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """Return the queue whose pod is next.

    Args:
        waiting: the queues with a pod to try, each with its place in line; the lowest came first. Names decide nothing,
            so that no queue comes first by what it is called.
        averages: what queues held over time; it counts as much as what they hold now.
    """
    tree = sums.tree
    paths = {queue: tree.path(queue)[::-1] for queue in waiting}
    unmet = {queue for queue in waiting if any(sums.is_below(name) for name in tree.path(queue))}

    def key(name: str, of: Iterable[str]) -> tuple[bool, float, float]:
        held = dominant_share(sums.held(name), capacity)
        past = averages.get(name) if averages is not None else None
        if past is not None:
            held = (held + dominant_share(past, capacity)) / 2
        weight = tree.weight(name)
        share = held / weight if weight > 0 else float("inf")
        return unmet.isdisjoint(of), share, min(waiting[queue] for queue in of)

    at, left = 0, list(waiting)
    while len(left) > 1:
        groups: dict[str, list[str]] = {}
        for queue in left:
            path = paths[queue]
            groups.setdefault(path[at] if at < len(path) else OUTSIDE, []).append(queue)
        _, left = min(groups.items(), key=lambda group: key(*group))
        at += 1
    return left[0]


def shown(amount: int, resource: int) -> str:
    """Format an amount of a resource (by position) for people: 2 CPUs, 0.5 GPUs, 16 GiB memory."""
    if resource == 0:
        return f"{amount / 1000:g} CPUs"
    if resource == 2:
        return f"{amount / 100:g} GPUs"
    gib = amount / 2**30 if resource == 1 else amount / 1024
    return f"{gib:.4g} GiB {'memory' if resource == 1 else 'GPU memory'}"
