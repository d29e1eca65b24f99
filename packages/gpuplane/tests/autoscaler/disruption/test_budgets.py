"""Disruption budgets: the smallest that counts, by reason and by time."""

from __future__ import annotations

import datetime
import math

import pytest

from gpuplane.api.karpenter import DisruptionBudget
from gpuplane.autoscaler.disruption.budgets import PoolCount, allowed_nodes, room_by_pool
from gpuplane.autoscaler.disruption.facts import DRIFTED, EMPTY

NOON = datetime.datetime(2026, 11, 23, 12, tzinfo=datetime.UTC).timestamp()


@pytest.mark.parametrize(
    ("nodes", "of", "allowed"),
    [("10%", 19, 2), ("10%", 1, 1), ("0%", 50, 0), ("100%", 7, 7), ("3", 50, 3), ("0", 5, 0)],
)
def test_percentages_are_rounded_up(nodes: str, of: int, allowed: int) -> None:
    assert allowed_nodes([DisruptionBudget(nodes)], EMPTY, of, NOON) == allowed


def test_the_smallest_budget_of_the_reason_counts() -> None:
    budgets = [DisruptionBudget("5"), DisruptionBudget("1", reasons=(DRIFTED,))]

    assert allowed_nodes(budgets, EMPTY, 50, NOON) == 5
    assert allowed_nodes(budgets, DRIFTED, 50, NOON) == 1


def test_a_schedule_opens_and_closes() -> None:
    closed = DisruptionBudget("0", schedule="0 9 * * mon-fri", duration=8 * 3600.0)

    assert allowed_nodes([closed, DisruptionBudget("5")], EMPTY, 50, NOON) == 0
    assert allowed_nodes([closed, DisruptionBudget("5")], EMPTY, 50, NOON + 5 * 3600) == 5


def test_no_budget_is_no_limit() -> None:
    assert allowed_nodes([], EMPTY, 50, NOON) == math.inf


@pytest.mark.parametrize(
    "budget",
    [DisruptionBudget("many"), DisruptionBudget("-1"), DisruptionBudget("5", schedule="never", duration=60.0)],
)
def test_a_budget_that_cannot_be_read_admits_no_disruption(budget: DisruptionBudget) -> None:
    assert allowed_nodes([budget], EMPTY, 50, NOON) == 0


def test_nodes_that_are_away_already_count() -> None:
    budgets = {"a": [DisruptionBudget("3")], "b": [DisruptionBudget("3")]}

    room = room_by_pool(budgets, {"a": PoolCount(10, 2), "b": PoolCount(10, 4)}, EMPTY, NOON)

    assert room == {"a": 1, "b": 0}
