"""Why a gang waits: its pods, the topology domains that were tried, and who holds the GPUs there. Pure.

The scheduler's own decision about the gang is made, on the cluster as it was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gpuplane.explain.evictions import EvictionAnswer, HoldingPod, gang_evictions, holders
from gpuplane.explain.scheduler_view import SchedulerView, gpus_text
from gpuplane.explain.world import World
from gpuplane.scheduler.gangs import members
from gpuplane.scheduler.gangs.gang import Gang
from gpuplane.scheduler.gangs.members import key_of
from gpuplane.scheduler.gangs.placing import GangDecision, GangPlace, TriedDomain
from gpuplane.scheduler.pods.objects import ScheduledPod
from gpuplane.sharing import Assignment
from kubekit.scheduling.queue import QUEUE_LIMIT

NO_GROUP, INCOMPLETE, NO_ROOM, QUEUE, FITS = "no-group", "incomplete", "no-room", "queue", "fits"
_MOST: Final = 8  # domains, and pods that hold GPUs in them


class GangDomain(msgspec.Struct, frozen=True, rename="camel"):
    """A topology domain that was looked at. `domain` is empty for the whole cluster.

    `room_for` is the number of the gang's pods that have room there together. `tried`: they were placed one after the
    other, and `lacks` says why the next one has none; else their number is counted from what is free.
    """

    domain: str
    room_for: int
    tried: bool
    lacks: str = ""


class GangAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The gang of a pod that waits.

    `state`: no-group (its size is unknown), incomplete, no-room, queue (its queue may not hold more), or fits. `size`
    pods start together, `waiting` and `bound` are there, `gated` ones are held back by scheduling gates. `together` is
    the number of pods that have to be placed together now: fewer than `size` where a part of it is bound.

    `required` and `preferred` are levels of topology. `message` is what the scheduler says. `held_by` are pods that
    hold GPUs in the first of `domains`. Of a gang of which a part is bound and the rest waits, `dissolves_in` is the
    number of seconds until its bound pods are evicted; -1 for other gangs.
    """

    name: str
    declared_by: str
    state: str
    message: str = ""
    size: int = 0
    waiting: int = 0
    bound: int = 0
    gated: int = 0
    together: int = 0
    required: str = ""
    preferred: str = ""
    timeout: int = 0
    dissolves_in: int = -1
    domains: tuple[GangDomain, ...] = ()
    held_by: tuple[HoldingPod, ...] = ()
    held_by_more: int = 0


class GangFindings(msgspec.Struct, frozen=True):
    """The gang, the dry run of its preemption, and the place that the pod itself would get; empty where it has none.

    `places` are those of all its pods.
    """

    gang: GangAnswer
    evictions: EvictionAnswer | None = None
    place: str = ""
    places: tuple[GangPlace, ...] = ()


def explain_gang(world: World, view: SchedulerView, pod: ScheduledPod, now: str) -> GangFindings | None:
    """Return what the scheduler decides about the gang of a pod; None for a pod that is placed by itself.

    Args:
        now: the time, as RFC 3339.
    """
    key = key_of(pod)
    if key is None or pod.gang is None or pod.trouble:
        return None
    gang = view.groups.gang(pod.metadata.namespace, pod.gang)
    if isinstance(gang, str):
        text = _own_words(gang, pod.gang.name)
        return GangFindings(GangAnswer(pod.gang.name, pod.gang.source, NO_GROUP, text))
    if gang.alone:
        return None
    pods = view.members.of(key)
    answer = _counted(view, gang, pod, pods, now)
    needs = members.needs(pod, gang, pods, _is_bound)
    if not needs.together:
        return GangFindings(_with(answer, state=INCOMPLETE, message=_own_words(needs.message, gang.name)))
    uids = frozenset(one.metadata.uid for one in needs.together)
    found = view.gangs.get((key, uids))
    if found is None:
        bound = [one for one in pods if _is_bound(one) and not one.metadata.deletion_timestamp]
        found = view.gangs[key, uids] = _decided(world, view, gang, answer, needs.together, bound)
    own = next((place for place in found.places if place.pod.metadata.uid == pod.metadata.uid), None)
    return found if own is None else msgspec.structs.replace(found, place=_place(view, own))


def _decided(
    world: World,
    view: SchedulerView,
    gang: Gang,
    answer: GangAnswer,
    pods: Sequence[ScheduledPod],
    bound: Sequence[ScheduledPod],
) -> GangFindings:
    """Return what the scheduler decides about the pods of a gang that have to be placed together."""
    decision = view.deciders.gang_places(gang, [view.promised(one) for one in pods], bound)
    answer = _with(answer, together=len(pods), message=_own_words(decision.message, gang.name))
    if decision.places:
        return GangFindings(_with(answer, state=FITS), places=decision.places)
    answer = _with(answer, state=QUEUE if QUEUE_LIMIT in decision.causes else NO_ROOM)
    answer = _with_domains(world, view, answer, decision, {one.metadata.uid for one in (*pods, *bound)})
    return GangFindings(answer, gang_evictions(world, view, gang, pods, bound))


def _with(answer: GangAnswer, **changes: Any) -> GangAnswer:
    return msgspec.structs.replace(answer, **changes)


def _is_bound(pod: ScheduledPod) -> bool:
    return bool(pod.spec.node_name)


def _own_words(text: str, gang: str) -> str:
    """Return a message of the scheduler without the name of the gang before it."""
    return text.removeprefix(f"gang {gang}: ")


def _counted(view: SchedulerView, gang: Gang, pod: ScheduledPod, pods: list[ScheduledPod], now: str) -> GangAnswer:
    assert pod.gang is not None
    live = [one for one in pods if not one.metadata.deletion_timestamp]
    bound = sum(map(_is_bound, live))
    gated = sum(one.info is not None and bool(one.info.gates) for one in live)
    half = members.half_bound(pods)
    left = -1
    if half:
        passed = members.seconds_half_bound(half, now)
        left = max(0, round(gang.timeout - passed))
    return GangAnswer(
        gang.name,
        pod.gang.source,
        INCOMPLETE,
        size=gang.size,
        waiting=len(live) - bound - gated,
        bound=bound,
        gated=gated,
        required=gang.required,
        preferred=gang.preferred,
        timeout=gang.timeout,
        dissolves_in=left,
    )


def _place(view: SchedulerView, place: GangPlace) -> str:
    """Return the place of a pod; without its GPU where other pods of the gang may get that one."""
    uuids = place.pod.request.uuids if place.pod.request else ()
    state = view.ledger.node(place.node)
    indices = [gpu.index for gpu in state.gpus if gpu.uuid in uuids] if state is not None else []
    return gpus_text(place.node, indices)


def _with_domains(
    world: World, view: SchedulerView, answer: GangAnswer, decision: GangDecision, own: set[str]
) -> GangAnswer:
    """Return the answer with the domains that were looked at, those with the most room first."""
    ranked = sorted(decision.tried, key=lambda one: -one.pods)[:_MOST]
    if not ranked:
        return answer
    nearest = ranked[0].domain
    there = [one for one in view.holders(nearest.nodes if nearest is not None else None) if one.uid not in own]
    if nearest is not None and nearest.uuid:
        there = [one for one in there if (held := view.ledger.holding(one.uid)) and nearest.uuid in _uuids(held[1])]
    listed = holders(world, view, there)
    return _with(
        answer,
        domains=tuple(map(_domain, ranked)),
        held_by=listed[:_MOST],
        held_by_more=max(0, len(listed) - _MOST),
    )


def _uuids(assignment: Assignment) -> set[str]:
    return {uuid for uuid, _ in assignment.held()}


def _domain(tried: TriedDomain) -> GangDomain:
    shown = tried.domain.shown if tried.domain is not None else ""
    return GangDomain(shown, tried.pods, bool(tried.why), tried.why)
