"""Disruption budgets: how many nodes of a pool may be disrupted now, for a reason. Pure.

Invariants (hypothesis holds them in packages/gpuplane/tests/autoscaler/disruption/test_budgets.py):

- The nodes that are away already (not ready, or being deleted) count against every budget.
- Of several active budgets the smallest counts. A budget that cannot be read admits no disruption.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gpuplane.api.karpenter import DisruptionBudget
from gpuplane.autoscaler.disruption.schedules import is_active, parse_schedule
from kubekit.errors import InvalidInput

UNLIMITED: Final = math.inf


class PoolCount(msgspec.Struct, frozen=True):
    """The initialized nodes of a pool, and those among them that are away: not ready, or being deleted."""

    nodes: int = 0
    away: int = 0


def allowed_nodes(budgets: Iterable[DisruptionBudget], reason: str, nodes: int, now: float) -> float:
    """Return how many of a pool's `nodes` the budgets let be away at once for a reason; infinite without a budget."""
    return min((_limit(one, nodes) for one in budgets if _counts(one, reason, now)), default=UNLIMITED)


def tightest_budget(
    budgets: Iterable[DisruptionBudget], reason: str, nodes: int, now: float
) -> DisruptionBudget | None:
    """Return the budget in force that admits the fewest of a pool's `nodes` for a reason; None without one."""
    return min((one for one in budgets if _counts(one, reason, now)), key=lambda one: _limit(one, nodes), default=None)


def room_by_pool(
    budgets: Mapping[str, Iterable[DisruptionBudget]], counts: Mapping[str, PoolCount], reason: str, now: float
) -> dict[str, float]:
    """Return pool -> how many more of its nodes may be disrupted now for a reason."""
    room: dict[str, float] = {}
    for pool, of_pool in budgets.items():
        count = counts.get(pool, PoolCount())
        room[pool] = max(0.0, allowed_nodes(of_pool, reason, count.nodes, now) - count.away)
    return room


def _counts(budget: DisruptionBudget, reason: str, now: float) -> bool:
    if budget.reasons and reason not in budget.reasons:
        return False
    if not budget.schedule:
        return True
    try:
        return is_active(budget.schedule, budget.duration, now)
    except InvalidInput:
        return True  # and `_limit` lets no node go: a schedule that is wrong must not open a pool


def _limit(budget: DisruptionBudget, nodes: int) -> float:
    text = budget.nodes
    number = text.removesuffix("%")
    if not (number.isascii() and number.isdigit()) or not _is_readable(budget.schedule):
        return 0.0
    if text.endswith("%"):
        return float(-(-int(number) * nodes // 100))
    return float(number)


def _is_readable(schedule: str) -> bool:
    try:
        if schedule:
            parse_schedule(schedule)
    except InvalidInput:
        return False
    return True
