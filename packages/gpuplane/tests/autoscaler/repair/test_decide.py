"""Repairs, decided: patience, one restart, then another node, and never more than a fifth of a pool."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.autoscaler.repair.decide import (
    DRAIN_SECONDS,
    REBOOT_SECONDS,
    PoolHealth,
    RepairStep,
    SickNode,
    decide_repair,
)

NOW = 100_000.0
POOL = PoolHealth(10, 1)
SICK = SickNode("c", "GPUsHealthy is False", NOW - 600, 600.0, reboots=True)


def step(node: SickNode = SICK, pool: PoolHealth = POOL, **more: object) -> RepairStep:
    return decide_repair(msgspec.structs.replace(node, **more), pool, NOW)


def test_a_symptom_is_waited_for_before_anything_is_done() -> None:
    assert step(since=NOW - 599).again == 1
    assert step().begin


def test_a_silent_kubelet_gets_another_node_without_a_restart() -> None:
    assert step(reboots=False).replace


def test_pods_leave_before_the_restart_but_not_for_ever() -> None:
    assert step(requested=NOW - 10, occupied=True).drain
    assert step(requested=NOW - DRAIN_SECONDS, occupied=True).reboot
    assert step(requested=NOW - 10).reboot


def test_a_node_that_works_again_gets_its_pods_again() -> None:
    assert step(requested=NOW - 10, symptom="").recover
    assert step(requested=NOW - 90, issued=NOW - 60, restarted=True, symptom="").recover
    assert step(requested=NOW - 10, kept=True).recover


def test_health_before_the_restart_has_happened_is_not_believed() -> None:
    assert not step(requested=NOW - 90, issued=NOW - 60, symptom="").recover


def test_a_restart_that_did_not_help_is_followed_by_another_node() -> None:
    assert step(requested=NOW - 2000, issued=NOW - REBOOT_SECONDS, restarted=True).replace
    assert not step(requested=NOW - 2000, issued=NOW - REBOOT_SECONDS + 1, restarted=True).replace


@pytest.mark.parametrize(
    ("nodes", "sick", "blocked"), [(10, 2, False), (10, 3, True), (1, 1, False), (6, 2, False), (6, 3, True)]
)
def test_more_than_a_fifth_of_a_pool_is_left_alone(nodes: int, sick: int, blocked: bool) -> None:
    assert step(pool=PoolHealth(nodes, sick)).blocked == blocked


flags = st.booleans()
some = st.builds(
    SickNode,
    claim=st.just("c"),
    symptom=st.sampled_from(["", "sick"]),
    since=st.sampled_from([NOW - 601, NOW - 600, NOW - 5]),
    patience=st.just(600.0),
    reboots=flags,
    requested=st.none() | st.sampled_from([NOW - 1, NOW - 5000]),
    issued=st.none() | st.sampled_from([NOW - 1, NOW - 5000]),
    restarted=flags,
    occupied=flags,
    kept=flags,
    leaving=flags,
)


@given(some, st.integers(1, 10), st.integers(0, 10))
def test_nothing_is_done_early_to_many_or_against_an_annotation(node: SickNode, nodes: int, sick: int) -> None:
    pool = PoolHealth(nodes, min(nodes, sick))
    found = decide_repair(node, pool, NOW)

    harms = found.begin or found.replace or found.reboot or found.drain
    if harms:
        assert not node.kept
        assert not node.leaving
    if node.requested is None and harms:
        assert node.symptom
        assert node.since + node.patience <= NOW
        assert not pool.too_many
    if found.reboot:
        assert node.issued is None, "a node is restarted once"
    if found.replace:
        assert not node.reboots or node.requested is not None
