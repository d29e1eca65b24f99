"""Queue, gang and preemption of a pod that waits, as its scheduler decides about them. Pure."""

from __future__ import annotations

import msgspec

from gpuplane import names
from gpuplane.explain.evictions import EvictionAnswer, evictions
from gpuplane.explain.gangs import GangAnswer, explain_gang
from gpuplane.explain.proving import Cure
from gpuplane.explain.queues import queue_cures, queue_text
from gpuplane.explain.scheduler_view import SchedulerView
from gpuplane.explain.world import Object, World
from gpuplane.scheduler.pods.objects import ScheduledPod
from kubekit.scheduling.podinfo import DEFAULT_SCHEDULER


class Scheduling(msgspec.Struct, frozen=True):
    """`place` is where the scheduler would place the pod now, empty for nowhere, None where it was not asked.

    `refused` is why it places the pod nowhere although each GPU and node that it needs is free. `asked` is whether
    disruption budgets, PodGroups and queues had a say.
    """

    asked: bool = False
    queue: str = ""
    waits_for_queue: str = ""
    gang: GangAnswer | None = None
    evictions: EvictionAnswer | None = None
    cures: tuple[Cure, ...] = ()
    place: str | None = None
    refused: str = ""


def scheduling(world: World, raw: Object, now: str, *, fits: bool) -> Scheduling:
    """Return what the pod's scheduler decides.

    Args:
        now: the time, as RFC 3339.
        fits: whether a node has room for the pod by itself.
    """
    scheduler = raw["spec"].get("schedulerName") or DEFAULT_SCHEDULER
    priority = raw["spec"].get("priority") or 0
    if scheduler == names.SCHEDULER_NAME:
        view = _view(world)
        pod = _known(view, raw)
        return _ours(world, view, pod, now, fits=fits) if pod is not None else Scheduling()
    if scheduler != DEFAULT_SCHEDULER or fits or not world.has_lower(priority):
        return Scheduling()
    view = _view(world)
    pod = view.as_ours(raw)
    if pod is None:
        return Scheduling()
    return Scheduling(asked=True, evictions=evictions(world, view, pod, view.decide(pod)))


def _view(world: World) -> SchedulerView:
    if world.scheduler is None:
        world.scheduler = SchedulerView(world.facts)
    return world.scheduler


def _known(view: SchedulerView, raw: Object) -> ScheduledPod | None:
    """Return the pod as the view has it; one that came after the list was read is added to its gang."""
    meta = raw["metadata"]
    known = view.pod(f"{meta['namespace']}/{meta['name']}")
    if known is not None and known.metadata.uid == meta.get("uid", ""):
        return known
    pod = view.as_ours(raw)
    if pod is not None:
        view.members.changed(known, pod)
    return pod


def _ours(world: World, view: SchedulerView, pod: ScheduledPod, now: str, *, fits: bool) -> Scheduling:
    queue = queue_text(view, pod)
    if pod.trouble:
        return Scheduling(True, queue, refused=pod.trouble)
    if (found := explain_gang(world, view, pod, now)) is not None:
        return Scheduling(True, queue, gang=found.gang, evictions=found.evictions, place=found.place)
    decision, refusal = view.decide(pod), view.refusal(pod)
    answer = evictions(world, view, pod, decision)
    if refusal:
        cures = tuple(queue_cures(world, view, pod))
        return Scheduling(True, queue, refusal, evictions=answer, cures=cures, place="")
    refused = decision.message if fits and not decision.node else ""
    return Scheduling(True, queue, evictions=answer, refused=refused)
