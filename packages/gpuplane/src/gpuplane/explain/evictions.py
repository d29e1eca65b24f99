"""A dry run of preemption for a pod that waits: which pods its scheduler would evict, or why none. Pure.

For pods of the pod scheduler its own plan is made, and for pods of kube-scheduler that of kube-scheduler and the
extender: it counts the GPUs of a node together, and evicts no pod where only fragments are in the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.explain.scheduler_view import SchedulerView, gpus_text
from gpuplane.explain.words import request_text
from gpuplane.explain.world import World
from gpuplane.scheduler.gangs.gang import Gang
from gpuplane.scheduler.gangs.placing import GangPlace
from gpuplane.scheduler.gangs.preempt import NOT_HELPFUL as GANG_NOT_HELPFUL
from gpuplane.scheduler.pods.decide import Decision
from gpuplane.scheduler.pods.objects import ScheduledPod
from gpuplane.sharing import Request
from kubekit.errors import KubekitError
from kubekit.scheduling import preemption
from kubekit.scheduling.podinfo import DEFAULT_SCHEDULER, PodInfo
from kubekit.scheduling.preemption import NEVER, NOT_HELPFUL, WAITING, Budget, Candidate, PreemptionPlan

EVICTS, LEAVING, NOMINATED, NONE = "evicts", "leaving", "nominated", "none"
_POLICY_NEVER: Final = "its preemptionPolicy is Never"
_MOST: Final = 64  # pods to list


class HoldingPod(msgspec.Struct, frozen=True, rename="camel"):
    """A pod on a node. `place` is node/GPU,GPU, or the node of a pod without GPUs.

    `budget` is the PodDisruptionBudget that its eviction breaks. `leaving`: it is being deleted already. `borrowed`:
    its queue holds more than its guarantee, and the waiting pod's queue takes its own back.
    """

    pod: str
    place: str
    holds: str
    priority: int
    budget: str = ""
    leaving: bool = False
    borrowed: bool = False


class EvictionAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The dry run. `state`: evicts, leaving (pods leave the node that the pod is nominated to), nominated (its room is
    kept there, and no pod leaves any more), or none, for the reasons `why`.

    `priority` is the pod's, of a gang the lowest. `place` is where the pod runs then, of a gang its first pod. `more`
    is the number of further victims that are not listed.
    """

    scheduler: str
    state: str
    priority: int
    place: str = ""
    victims: tuple[HoldingPod, ...] = ()
    more: int = 0
    why: tuple[str, ...] = ()


def evictions(world: World, view: SchedulerView, pod: ScheduledPod, decision: Decision) -> EvictionAnswer | None:
    """Return the dry run for a pod that is placed by itself; None where it has a place, or cannot be placed at all.

    Args:
        decision: what the scheduler decides about the pod now.
    """
    info = pod.info
    if info is None or pod.trouble:
        return None
    ours = info.scheduler_name == names.SCHEDULER_NAME
    if not ours and info.scheduler_name != DEFAULT_SCHEDULER:
        return None
    if decision.node:
        if ours and info.nominated == decision.node:
            return EvictionAnswer(names.SCHEDULER_NAME, NOMINATED, info.priority, view.place(pod, decision.node))
        return None
    if decision.found is None:
        return None
    # Equal pods have equal answers, except that room is reserved for a nominated pod alone.
    kind = pod.kind if not info.nominated else b""
    if kind and kind in view.evictions:
        return view.evictions[kind]
    try:
        found = _by_us(world, view, pod, decision) if ours else _by_kube_scheduler(world, view, pod, decision)
    except KubekitError:
        return None  # quotas are unknown
    if kind:
        view.evictions[kind] = found
    return found


def _by_us(world: World, view: SchedulerView, pod: ScheduledPod, decision: Decision) -> EvictionAnswer:
    assert pod.info is not None and decision.found is not None
    info, budgets = pod.info, view.facts.scheduling.budgets
    planned = view.deciders.victims(pod, decision.found, budgets)
    if isinstance(planned, Candidate):
        with view.deciders.preemption.without(planned.victims):
            place = view.place(pod, planned.node)
        return _evicts(world, view, names.SCHEDULER_NAME, info, place, planned.victims)
    if planned.message == WAITING:
        return _leaving(world, view, info, [info.nominated])
    return EvictionAnswer(
        names.SCHEDULER_NAME, NONE, info.priority, why=_why(view, info, planned.message, planned.counts)
    )


def _by_kube_scheduler(world: World, view: SchedulerView, pod: ScheduledPod, decision: Decision) -> EvictionAnswer:
    """kube-scheduler's plan, with the extender's corrections."""
    assert pod.info is not None and decision.found is not None
    info, found, budgets = pod.info, decision.found, view.facts.scheduling.budgets
    planned = preemption.plan(info, view.cache, found, budgets)
    if planned.message == WAITING:
        return _leaving(world, view, info, [info.nominated], DEFAULT_SCHEDULER)
    corrected = [
        Candidate(one.node, tuple(map(known.__getitem__, uids)), one.violations)
        for one in planned.candidates
        for known in [{other.uid: other for other in view.cache.nodes[one.node].pods.values()}]
        if (uids := view.deciders.away.victims_on(pod, one.node, [victim.uid for victim in one.victims])) is not None
    ]
    if corrected:
        chosen = preemption.choose(corrected)
        with view.deciders.preemption.without(chosen.victims):
            place = view.place(pod, chosen.node)
        return _evicts(world, view, DEFAULT_SCHEDULER, info, place, chosen.victims)
    if not planned.candidates and isinstance(view.deciders.victims(pod, found, budgets), Candidate):
        why = (
            "kube-scheduler counts the GPUs of a node together, and together enough is free: it evicts no pod to join "
            f"parts of different GPUs; the pod scheduler would (schedulerName: {names.SCHEDULER_NAME})"
        )
        return EvictionAnswer(DEFAULT_SCHEDULER, NONE, info.priority, why=(why,))
    return _none(view, DEFAULT_SCHEDULER, info, planned)


def gang_evictions(
    world: World, view: SchedulerView, gang: Gang, pods: Sequence[ScheduledPod], bound: Sequence[ScheduledPod]
) -> EvictionAnswer | None:
    """Return the dry run for a gang that has no place; `place` is that of the first pod.

    Args:
        pods: those that have to be placed together now; `bound`: those that have a node already.
    """
    infos = [pod.info for pod in pods if pod.info is not None]
    least = min(infos, key=lambda info: info.priority)
    try:
        planned = view.deciders.gang_preemption.plan(gang, pods, bound, view.facts.scheduling.budgets)
    except KubekitError:
        return None
    if planned.places:
        place = _place_of(view, planned.places, planned.victims)
        return _evicts(world, view, names.SCHEDULER_NAME, least, place, planned.victims)
    if planned.message == WAITING:
        return _leaving(world, view, least, {info.nominated for info in infos if info.nominated})
    if planned.message == GANG_NOT_HELPFUL:
        why = ("without all pods that it may evict it has no room either",)
    elif planned.message.endswith(NEVER):
        why = (_POLICY_NEVER,)
    else:
        why = (_no_lower(view, least),)
    return EvictionAnswer(names.SCHEDULER_NAME, NONE, least.priority, why=why)


def _place_of(view: SchedulerView, places: Sequence[GangPlace], victims: Sequence[PodInfo]) -> str:
    first = places[0]
    with view.deciders.preemption.without(victims):
        return view.place(first.pod, first.node)


# -- parts of answers --------------------------------------------------------------------------------------------------


def _evicts(
    world: World, view: SchedulerView, scheduler: str, info: PodInfo, place: str, victims: Sequence[PodInfo]
) -> EvictionAnswer:
    listed = holders(world, view, victims, info)
    return EvictionAnswer(scheduler, EVICTS, info.priority, place, listed[:_MOST], max(0, len(listed) - _MOST))


def _leaving(
    world: World, view: SchedulerView, info: PodInfo, nodes: Iterable[str], scheduler: str = names.SCHEDULER_NAME
) -> EvictionAnswer:
    found = sorted(nodes)
    leave = [
        other
        for name in found
        for other in view.cache.nodes[name].pods.values()
        if other.terminating and (view.fair or other.priority < info.priority)
    ]
    listed, place = holders(world, view, leave, info), ", ".join(found)
    return EvictionAnswer(scheduler, LEAVING, info.priority, place, listed[:_MOST], max(0, len(listed) - _MOST))


def _none(view: SchedulerView, scheduler: str, info: PodInfo, planned: PreemptionPlan) -> EvictionAnswer:
    why = _why(view, info, planned.message, planned.counts)
    return EvictionAnswer(scheduler, NONE, info.priority, why=why)


def holders(
    world: World, view: SchedulerView, pods: Sequence[PodInfo], info: PodInfo | None = None
) -> tuple[HoldingPod, ...]:
    """Return pods with what they hold, those of the lowest priority first.

    Args:
        info: the pod that they are evicted for; None where they are not.
    """
    budgets = view.facts.scheduling.budgets if info is not None else ()
    broken = {pod.uid for pod in preemption.split(pods, budgets)[0]}
    found = []
    for pod in sorted(pods, key=lambda pod: (pod.priority, pod.node_name, view.holds(pod.uid), pod.name)):
        known = view.pod(pod.key)
        budget = next((one for one in budgets if one.covers(pod)), None) if pod.uid in broken else None
        found.append(
            HoldingPod(
                world.shown(known) if known is not None else pod.key,
                gpus_text(pod.node_name, view.holds(pod.uid)),
                request_text(known.request if known is not None else Request(), {}),
                pod.priority,
                _name(view, budget) if budget is not None else "",
                pod.terminating,
                info is not None and bool(view.fair.reclaims(info, pod)),
            )
        )
    return tuple(found)


def _name(view: SchedulerView, budget: Budget) -> str:
    if view.facts.viewer in ("", budget.namespace):
        return f"{budget.namespace}/{budget.name}"
    return "a budget of another namespace"


def _why(view: SchedulerView, info: PodInfo, message: str, counts: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Return why no eviction helps."""
    if message == NEVER:
        return (_POLICY_NEVER,)
    if not _may_evict_any(view, info):
        return (_no_lower(view, info),)
    words = {
        NOT_HELPFUL.reasons[0]: "no eviction changes why the pod cannot go there",
        preemption.NO_VICTIMS.reasons[0]: "without all pods that it may evict there it has no room either",
    }
    return tuple(
        f"{count} {'node' if count == 1 else 'nodes'}: {words.get(reason, reason)}"
        for reason, count in sorted(counts, key=lambda one: (-one[1], one[0]))
    )


def _may_evict_any(view: SchedulerView, info: PodInfo) -> bool:
    victims = view.fair.victims_for(info)
    return any(victims.together([other]) for other in view.cache.pods.values())


def _no_lower(view: SchedulerView, info: PodInfo) -> str:
    if view.fair:
        return f"no pod runs that its queue and its priority {info.priority} let it evict"
    return f"no pod of lower priority than {info.priority} runs"
