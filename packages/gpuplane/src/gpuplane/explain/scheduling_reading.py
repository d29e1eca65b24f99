"""Reads what only schedulers depend on: disruption budgets, PodGroups and the objects of Kueue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from gpuplane.scheduler.gangs.reading import ReadGroups, read_groups
from gpuplane.scheduler.pods.evict import read_budgets
from gpuplane.scheduler.queues.reading import ReadKueue, read_kueue
from kubekit.api.raw import RawBudget
from kubekit.kube import Client, Forbidden
from kubekit.scheduling.preemption import Budget

_BUDGETS = RawBudget.RESOURCE.plural


class SchedulingFacts(msgspec.Struct, frozen=True):
    """The objects as they were read. `unread`: kinds that the user may not list, so that none of them is known."""

    budgets: Sequence[Budget] = ()
    groups: ReadGroups = ReadGroups()
    kueue: ReadKueue = ReadKueue()
    unread: tuple[str, ...] = ()


async def read_scheduling(client: Client) -> SchedulingFacts:
    """Read one list of each kind, as far as the user may."""
    (budgets, unread), groups, kueue = await asyncio.gather(_budgets(client), read_groups(client), read_kueue(client))
    return SchedulingFacts(budgets, groups, kueue, (*unread, *groups.unread, *kueue.unread))


async def _budgets(client: Client) -> tuple[list[Budget], tuple[str, ...]]:
    try:
        return read_budgets(await client.list(RawBudget)), ()
    except Forbidden:
        return [], (_BUDGETS,)
