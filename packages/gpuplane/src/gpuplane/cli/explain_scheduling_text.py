"""Formats the gang, the queue and the dry run of preemption of a pod that waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gpuplane.cli.terminal import Console, prefixed
from gpuplane.explain.answer import Explanation
from gpuplane.explain.evictions import EVICTS, LEAVING, NOMINATED, NONE, EvictionAnswer, HoldingPod
from gpuplane.explain.gangs import FITS, INCOMPLETE, NO_GROUP, GangAnswer
from kubekit.scheduling.podinfo import DEFAULT_SCHEDULER

_INDENT: Final = 10
_SCHEDULERS: Final = {DEFAULT_SCHEDULER: "kube-scheduler"}


def gang_lines(what: Explanation, screen: Console) -> Iterator[str]:
    """Format the gang: its pods, the domains that were looked at, and who holds their GPUs."""
    gang = what.gang
    if gang is None:
        return
    yield from prefixed(" gang     ", f"{gang.name}: {_declaration(gang)}", screen)
    if gang.state != NO_GROUP:
        yield from _row(_count(gang), screen)
    if gang.state == FITS:
        yield from _row("all of it has room now, so the pod scheduler binds it at its next try", screen)
    elif gang.state == INCOMPLETE and not gang.bound and (missing := gang.size - gang.waiting) > 0:
        more = "1 more pod is" if missing == 1 else f"{missing} more pods are"
        yield from _row(f"it starts when {more} there", screen)
    elif not gang.domains or gang.state == INCOMPLETE:
        yield from _row(gang.message, screen)
    if gang.dissolves_in >= 0:
        yield from _row(
            f"a part of it is bound: in {gang.dissolves_in} s that part is evicted, unless the rest finds room", screen
        )
    if gang.domains:
        yield ""
        yield from _domains(gang, screen)
    if gang.held_by and not _all_evicted(what, gang):
        yield ""
        where = gang.domains[0].domain or "the cluster"
        yield from prefixed(" held     ", f"pods with GPUs of {where}:", screen)
        yield from _table(gang.held_by, gang.held_by_more, screen)
    yield ""


def _all_evicted(what: Explanation, gang: GangAnswer) -> bool:
    """Return whether all holders are listed as victims too."""
    answer = what.evictions
    evicted = {one.pod for one in answer.victims} if answer is not None and answer.state == EVICTS else set()
    return not gang.held_by_more and {one.pod for one in gang.held_by} <= evicted


def _declaration(gang: GangAnswer) -> str:
    if gang.state == NO_GROUP:
        return gang.message
    topology = f", in one {_level(gang.required)}" if gang.required else ""
    topology += f", preferably in one {_level(gang.preferred)}" if gang.preferred else ""
    return f"{_pods(gang.size)} start{'s' if gang.size == 1 else ''} together{topology}"


def _level(level: str) -> str:
    return {"gpu": "GPU", "nvlink": "NVLink domain"}.get(level, level)


def _pods(number: int) -> str:
    return f"{number} pod{'' if number == 1 else 's'}"


def _count(gang: GangAnswer) -> str:
    parts = [f"{gang.waiting} waiting", f"{gang.bound} bound"]
    if gang.gated:
        parts.append(f"{gang.gated} held back by scheduling gates")
    if gang.together and gang.together != gang.size:
        parts.append(f"{gang.together} of them to be placed together now")
    return ", ".join(parts)


def _domains(gang: GangAnswer, screen: Console) -> Iterator[str]:
    many = gang.together
    for number, one in enumerate(gang.domains):
        head = " room     " if not number else " " * _INDENT
        where = f" in {one.domain}" if one.domain else ""
        if one.tried:
            text = f"for {one.room_for} of {many}{where}; the next one: {one.lacks}"
        else:
            text = f"for {one.room_for} of {many} at most{where}"
        yield from prefixed(head, text, screen)


def queue_lines(what: Explanation, screen: Console) -> Iterator[str]:
    """Format why the pod's queue lets it wait."""
    if what.waits_for_queue:
        yield from prefixed(" queue    ", what.waits_for_queue, screen)
        yield ""


def eviction_lines(what: Explanation, screen: Console) -> Iterator[str]:
    """Format the dry run of preemption."""
    answer = what.evictions
    if answer is None or (answer.state == NONE and answer.priority <= 0):
        return  # a pod without priority expects no room to be made
    yield ""
    who = _SCHEDULERS.get(answer.scheduler, "the pod scheduler")
    if answer.state == EVICTS:
        yield from prefixed(" evict    ", f"{who} would evict {_victims(answer)}; {_then(what, answer)}", screen)
        yield from _table(answer.victims, answer.more, screen)
    elif answer.state == LEAVING:
        yield from prefixed(" evict    ", f"{who} evicted pods on {answer.place}, and keeps their room for it", screen)
        yield from _table(answer.victims, answer.more, screen)
    elif answer.state == NOMINATED:
        yield from prefixed(" evict    ", f"no pod any more: {answer.place} is reserved for it", screen)
    else:
        yield from prefixed(" evict    ", f"no pod: {answer.why[0]}", screen)
        for line in answer.why[1:]:
            yield from _row(line, screen)


def _victims(answer: EvictionAnswer) -> str:
    return _pods(len(answer.victims) + answer.more)


def _then(what: Explanation, answer: EvictionAnswer) -> str:
    return "then the whole gang has room" if what.gang is not None else f"then it runs on {answer.place}"


def _table(pods: Sequence[HoldingPod], more: int, screen: Console) -> Iterator[str]:
    """Format pods with what they hold; the remarks of one that has some follow on a line of their own."""
    rows = [(one.pod, one.place, one.holds, f"priority {one.priority}") for one in pods]
    widths = [max((len(row[at]) for row in rows), default=0) for at in range(4)]
    beside = _INDENT + sum(widths) + 9 <= screen.width
    for one, row in zip(pods, rows, strict=True):
        if beside:
            yield (
                " " * _INDENT + "   ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
            )
        else:
            yield from prefixed(" " * _INDENT, ", ".join(cell for cell in row if cell), screen)
        if remark := _remark(one):
            yield from prefixed(" " * (_INDENT + 2), f"({remark})", screen)
    if more:
        yield from _row(f"and {more} more", screen)


def _remark(pod: HoldingPod) -> str:
    parts = []
    if pod.leaving:
        parts.append("being deleted")
    if pod.borrowed:
        parts.append("its queue has borrowed what it holds")
    if pod.budget:
        parts.append(f"breaks the disruption budget {pod.budget}")
    return "; ".join(parts)


def _row(text: str, screen: Console) -> Iterator[str]:
    return prefixed(" " * _INDENT, text, screen)
