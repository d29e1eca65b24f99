"""The queue of a pod that waits for the pod scheduler: what it holds, and why it lets the pod wait. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from gpuplane.api.gpuqueue import GPUQueue
from gpuplane.explain.proving import TRIES, Cure, with_effect
from gpuplane.explain.scheduler_view import SchedulerView
from gpuplane.explain.world import World
from gpuplane.scheduler.pods.objects import ScheduledPod
from gpuplane.scheduler.queues.objects import tree_of, written
from gpuplane.scheduler.queues.shares import dominant_share, plus
from gpuplane.scheduler.queues.tree import OUTSIDE, RESOURCES


def queue_text(view: SchedulerView, pod: ScheduledPod) -> str:
    """Return the queue of a pod with what it holds; empty without one."""
    fair = view.fair
    if not fair or pod.info is None or (name := fair.queue_of(pod.info)) == OUTSIDE:
        return ""
    share = dominant_share(fair.sums.held(name), fair.capacity.total)
    held, borrowed = written(fair.sums.held(name)), written(fair.sums.borrowed(name))
    return f"{name} (holds {held.gpus or '0'} GPUs, {borrowed.gpus or '0'} borrowed, share {share * 100:.3g}%)"


def queue_cures(world: World, view: SchedulerView, pod: ScheduledPod) -> Iterator[Cure]:
    """Yield changes after which the queue lets the pod start, each proved by deciding again: one pod of the queue that
    ends, and a higher limit.
    """
    info = pod.info
    if info is None:
        return
    mine = view.fair.tree.path(view.fair.queue_of(info))
    others = [one for one in view.cache.pods.values() if set(mine) & set(view.fair.tree.path(view.fair.queue_of(one)))]
    for other in islice(sorted(others, key=lambda one: (sum(one.requests.values()), one.key)), TRIES):
        with view.deciders.preemption.without([other]):
            decision = view.decide(pod)
            place = view.place(pod, decision.node) if decision.node else ""
        known = view.pod(other.key)
        if place and known is not None:
            found = Cure(f"{world.shown(known)} ends or is deleted", place)
            yield from with_effect([found], "deleting it ends its work")
            break
    yield from _higher_limit(view, pod)


def _higher_limit(view: SchedulerView, pod: ScheduledPod) -> Iterator[Cure]:
    """Yield the smallest limit with which the queue lets the pod start; only of a GPUQueue."""
    assert pod.info is not None
    fair, facts = view.fair, view.facts
    amounts = fair.amounts(pod.info)
    over = fair.sums.over_limit(fair.queue_of(pod.info), amounts)
    queue = next((one for one in facts.queues if over is not None and one.metadata.name == over[0]), None)
    if over is None or queue is None:
        return
    name, at = over
    needed = msgspec.structs.astuple(written(plus(fair.sums.held(name), amounts)))[at]
    before = fair.tree
    tree, _ = tree_of([_with_limit(one, at, needed) if one is queue else one for one in facts.queues], view.kueue)
    fair.set_tree(tree, view.cache.pods.values())
    decision = view.decide(pod)
    fair.set_tree(before, view.cache.pods.values())
    if decision.node:
        patch = msgspec.json.encode({"spec": {"limit": {RESOURCES[at]: needed}}}).decode()
        change = f"kubectl patch gpuqueue {name} --type merge -p '{patch}'"
        yield Cure(change, view.place(pod, decision.node), "other pods of the queue may use it too")


def _with_limit(queue: GPUQueue, at: int, needed: str) -> GPUQueue:
    limit = msgspec.structs.replace(queue.spec.limit, **{msgspec.structs.fields(queue.spec.limit)[at].name: needed})
    return msgspec.structs.replace(queue, spec=msgspec.structs.replace(queue.spec, limit=limit))
