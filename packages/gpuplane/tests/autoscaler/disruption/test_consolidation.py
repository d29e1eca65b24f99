"""Consolidation: what goes, what is bought instead, and what no random cluster leads to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.api.karpenter import PoolDisruption
from gpuplane.autoscaler.catalogue import InstanceType
from gpuplane.autoscaler.disruption.consolidation import (
    MULTI_POLICY,
    SINGLE_POLICY,
    confirm_move,
    consolidatable,
    decide_consolidation,
)
from gpuplane.autoscaler.disruption.removal import RemovalOutcome, plan_drifted
from gpuplane.autoscaler.disruption.replacement import GATE_CLOSED, TOO_DEAR
from packages.gpuplane.tests.autoscaler.disruption.small_cluster import EVERYTHING, SmallCluster, work
from packages.gpuplane.tests.autoscaler.worlds import AWS, pool, requirement, types_named


def spot_types() -> list[object]:
    """The catalogue with spot offers at three tenths of the price."""
    return [
        msgspec.structs.replace(one, prices=(*one.prices, ("spot", one.prices[0][1] * 0.3))) for one in AWS.values()
    ]


def test_pods_that_fit_elsewhere_free_their_node() -> None:
    cluster = SmallCluster()
    cluster.add("a", "g4dn.12xlarge", work("p1"))
    cluster.add("b", "g4dn.12xlarge", work("p2"), work("p3"), work("p4"))

    move = decide_consolidation(cluster.round())

    # Both cannot go together for less, so one of them goes alone: the one with less to disturb.
    assert move is not None
    assert [node.claim for node in move[0].nodes] == ["a"]
    assert move[0].policy == SINGLE_POLICY
    assert not move[1]


def test_a_node_that_is_too_large_is_replaced_by_a_cheaper_one() -> None:
    cluster = SmallCluster()
    cluster.add("a", "g4dn.12xlarge", work("p1"))

    move = decide_consolidation(cluster.round())

    assert move is not None
    plan, bought = move
    assert [one.option.machine.name for one in bought] == ["g4dn.xlarge"]
    assert all(option.price < 3.912 for option in bought[0].options)
    assert "saves" in plan.detail


def test_several_nodes_become_one() -> None:
    cluster = SmallCluster()
    for name in ("a", "b", "c"):
        cluster.add(name, "g4dn.4xlarge", work(f"p-{name}", 0))

    move = decide_consolidation(cluster.round())

    assert move is not None
    plan, bought = move
    assert plan.policy == MULTI_POLICY
    assert len(plan.nodes) == 3
    assert [one.option.machine.name for one in bought] == ["g4dn.xlarge"]


def test_a_node_of_four_gpus_becomes_four_cheaper_nodes() -> None:
    cluster = SmallCluster()
    cluster.add("a", "g4dn.12xlarge", *(work(f"p{number}") for number in range(4)))

    move = decide_consolidation(cluster.round())

    assert move is not None
    plan, bought = move
    assert [one.option.machine.name for one in bought] == ["g4dn.xlarge"] * 4
    # Every launch may also take the next type, and something is saved all the same.
    assert {one.machine.name for node in bought for one in node.options} == {"g4dn.xlarge", "g4dn.2xlarge"}
    assert plan.detail == "saves 1.808 $/h, replaced by 4 x g4dn.xlarge"
    assert confirm_move(plan, cluster.round()) is not None


def test_several_nodes_become_several_that_neither_alone_would() -> None:
    shapes = {"cpu": (8, 8, 1.0), "memory": (2, 64, 1.0), "both": (4, 32, 1.2)}
    types = [
        InstanceType(name, cpu, gib << 10, 50, (("on-demand", price),)) for name, (cpu, gib, price) in shapes.items()
    ]
    cluster = SmallCluster(pool("gpu", types_named(*shapes)), catalogue=types)
    for name in ("a", "b"):
        dear = work(f"m-{name}")
        dear["spec"]["containers"][0]["resources"] = {"requests": {"memory": "25Gi"}}
        cluster.add(name, "both", work(f"c-{name}", 0, cpu="3500m"), dear)

    move = decide_consolidation(cluster.round())

    assert move is not None
    assert sorted(one.option.machine.name for one in move[1]) == ["cpu", "memory"]
    assert len(move[0].nodes) == 2


def test_several_replacements_save_a_part_of_the_price() -> None:
    dear = [msgspec.structs.replace(one, prices=(("on-demand", 0.79),)) for one in (AWS["g4dn.xlarge"],)]
    cluster = SmallCluster(catalogue=[*dear, AWS["g4dn.12xlarge"]])
    cluster.add("a", "g4dn.12xlarge", *(work(f"p{number}") for number in range(4)))
    assert decide_consolidation(cluster.round()) is None  # 3.160 is less than 3.912, but by less than a fifth

    cluster.catalogue[0] = msgspec.structs.replace(dear[0], prices=(("on-demand", 0.78),))
    assert decide_consolidation(cluster.round()) is not None


def test_only_nodes_that_may_save_are_asked_for() -> None:
    cluster = SmallCluster()
    for number in range(12):
        cluster.add(f"full-{number}", "g4dn.xlarge", work(f"p{number}", cpu="3500m"))
    asked: list[int] = []

    def ask(without: Collection[str]) -> RemovalOutcome:
        asked.append(len(without))
        return cluster.ask(without)

    facts = msgspec.structs.replace(cluster.round(), ask=ask)
    assert decide_consolidation(facts) is None
    assert 1 not in asked
    assert len(asked) <= 5
    assert set(facts.why.values()) == {TOO_DEAR}


def test_a_try_is_bounded_by_steps_and_the_next_one_goes_on() -> None:
    cluster = SmallCluster()
    for number in range(6):
        cluster.add(f"full-{number}", "g4dn.xlarge", work(f"p{number}", cpu="3500m"))
    seen: set[str] = set()
    tried = []
    while True:
        facts = msgspec.structs.replace(cluster.round(), seen=seen, steps=4)  # a screened pod and its node are two
        assert decide_consolidation(facts) is None
        tried.append(sorted(facts.why))
        if not seen:
            break

    assert tried == [["full-0", "full-1"], ["full-2", "full-3"], ["full-4", "full-5"]]


def test_a_purchase_is_a_step_for_each_pod_and_node() -> None:
    cluster = SmallCluster()
    for number in range(3):
        cluster.add(f"n-{number}", "g4dn.xlarge", work(f"p{number}"))
    asked: list[int] = []

    def ask(without: Collection[str]) -> RemovalOutcome:
        asked.append(len(without))
        return RemovalOutcome(waiting={"ml/p": ()})

    # A node is screened for 2 steps, and its purchase is 6: the first node leaves 1 of 9, which the second one takes.
    facts = msgspec.structs.replace(cluster.round(), ask=ask, screen=lambda node: "", steps=9)
    assert decide_consolidation(facts) is None
    assert asked.count(1) == 2
    assert len(facts.seen) == 2


def test_nothing_is_replaced_by_its_like() -> None:
    cluster = SmallCluster()
    cluster.add("a", "g4dn.xlarge", work("p1"))
    cluster.add("b", "g4dn.xlarge", work("p2"))

    assert decide_consolidation(cluster.round()) is None


def test_a_spot_node_is_not_replaced_by_a_spot_node_but_an_on_demand_node_is() -> None:
    cluster = SmallCluster(catalogue=spot_types())
    cluster.add("a", "g4dn.12xlarge", work("p1"), kind="spot")
    facts = cluster.round()
    assert decide_consolidation(facts) is None
    assert facts.why == {"a": GATE_CLOSED}

    cluster.add("a", "g4dn.xlarge", work("p1"))
    move = decide_consolidation(cluster.round())
    assert move is not None
    assert {option.capacity_type for option in move[1][0].options} == {"spot"}


def spot_cluster() -> SmallCluster:
    every = requirement("node.kubernetes.io/instance-type", "Exists")
    cluster = SmallCluster(pool("gpu", every), catalogue=spot_types())
    cluster.spot_to_spot = True
    return cluster


def test_the_gate_lets_one_spot_node_be_replaced_by_the_cheapest_types() -> None:
    cluster = spot_cluster()
    cluster.add("a", "p3.8xlarge", work("p1"), kind="spot")

    move = decide_consolidation(cluster.round())

    assert move is not None
    (node,) = move[1]
    assert len({one.machine.name for one in node.options}) == 15
    assert {one.capacity_type for one in node.options} == {"spot"}
    assert confirm_move(move[0], cluster.round()) is not None
    cluster.take(move)
    facts = cluster.round()
    assert decide_consolidation(facts) is None


def test_spot_nodes_are_replaced_by_one_node_where_several_would_cost_less() -> None:
    cluster = spot_cluster()
    cluster.add("a", "p3.16xlarge", *(work(f"p{number}") for number in range(4)), kind="spot")

    move = decide_consolidation(cluster.round())

    assert move is not None
    (node,) = move[1]
    assert len(node.pods) == 4
    assert all(one.machine.gpus >= 4 for one in node.options)


def test_several_spot_nodes_become_one_though_few_types_are_cheaper() -> None:
    cluster = SmallCluster(catalogue=spot_types())
    cluster.spot_to_spot = True
    for name in ("a", "b", "c"):
        cluster.add(name, "g4dn.4xlarge", work(f"p-{name}", 0), kind="spot")

    move = decide_consolidation(cluster.round())

    assert move is not None
    assert (len(move[0].nodes), len(move[1])) == (3, 1)


@pytest.mark.parametrize(
    "more",
    [
        {"consolidatable": False},
        {"held": "do-not-consolidate"},
        {"stays": "do-not-disrupt"},
        {"stays_for_pods": "a budget admits none"},
        {"away": True},
        {"price": None},
        {"initialized": None},
    ],
)
def test_a_node_that_may_not_go_stays(more: dict[str, object]) -> None:
    cluster = SmallCluster()
    cluster.add("a", "g4dn.12xlarge", work("p1"), **more)

    assert decide_consolidation(cluster.round()) is None


def test_pods_do_not_move_to_a_node_that_takes_none_yet() -> None:
    cluster = SmallCluster()
    cluster.add("a", "g4dn.xlarge", work("p1"))
    cluster.add("b", "g4dn.12xlarge", work("p2"), initialized=None)
    cluster.unready.add("b")

    assert decide_consolidation(cluster.round()) is None


def test_the_policy_decides_and_so_does_the_room() -> None:
    cluster = SmallCluster()
    cluster.add("a", "g4dn.12xlarge", work("p1"))

    cluster.rules["gpu"] = PoolDisruption(consolidate_after=0.0, policy="WhenEmpty")
    assert decide_consolidation(cluster.round()) is None
    cluster.rules["gpu"], cluster.room["gpu"] = EVERYTHING, 0.0
    assert decide_consolidation(cluster.round()) is None


def test_balanced_moves_only_what_is_worth_its_disruption() -> None:
    cluster = SmallCluster()
    cluster.rules["gpu"] = PoolDisruption(consolidate_after=0.0, policy="Balanced")
    many = [work(f"m{number}", 0, cpu="10m") for number in range(25)]
    cluster.add("a", "g4dn.2xlarge", *many)  # saves 0.226 $/h of 12, for 26 of 29 pods' disruption
    for name in ("b", "c", "d"):
        cluster.add(name, "g4dn.12xlarge", *(work(f"{name}{number}", cpu="11") for number in range(4)))

    assert decide_consolidation(cluster.round()) is None
    cluster.rules["gpu"] = EVERYTHING
    assert decide_consolidation(cluster.round()) is not None


def test_the_order_is_dollars_for_disruption() -> None:
    cluster = SmallCluster()
    cluster.add("cheap", "g4dn.xlarge", work("p1"))
    cluster.add("dear", "g4dn.12xlarge", work("p2"))
    cluster.add("full", "g4dn.12xlarge", *(work(f"q{number}") for number in range(4)))

    ordered = consolidatable(cluster.nodes.values(), cluster.rules)

    assert [node.claim for node in ordered] == ["dear", "full", "cheap"]


def test_a_move_is_confirmed_only_while_it_holds() -> None:
    cluster = SmallCluster()
    cluster.add("a", "g4dn.12xlarge", work("p1"))
    cluster.add("b", "g4dn.12xlarge", work("p2"), work("p3"), work("p4"))
    move = decide_consolidation(cluster.round())
    assert move is not None
    assert confirm_move(move[0], cluster.round()) is not None

    cluster.nodes["a"] = msgspec.structs.replace(cluster.nodes["a"], stays="waiting pods are expected on the node")
    assert confirm_move(move[0], cluster.round()) is None


def test_a_drifted_node_is_replaced_and_may_cost_more() -> None:
    cluster = SmallCluster()
    cluster.add("a", "g4dn.xlarge", work("p1"), drift="AMIDrift")
    cluster.add("b", "g4dn.xlarge", work("p2"))

    found = plan_drifted(list(cluster.nodes.values()), {"gpu": 1.0}, cluster.ask)

    assert found is not None
    assert [node.claim for node in found[0].nodes] == ["a"]
    assert [one.option.machine.name for one in found[1]] == ["g4dn.xlarge"]
    assert plan_drifted(list(cluster.nodes.values()), {"gpu": 0.0}, cluster.ask) is None


def test_a_drifted_node_whose_pods_have_no_other_place_stays() -> None:
    cluster = SmallCluster(pool("gpu", limits={"nodes": "0"}))
    cluster.add("a", "g4dn.xlarge", work("p1"), drift="AMIDrift")

    assert plan_drifted(list(cluster.nodes.values()), {"gpu": 1.0}, cluster.ask) is None


machines = st.sampled_from(["g4dn.xlarge", "g4dn.2xlarge", "g4dn.12xlarge"])
some = st.lists(st.tuples(machines, st.lists(st.sampled_from([0, 1]), max_size=4)), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(some, st.sampled_from([1.0, 2.0, 100.0]))
def test_every_move_saves_and_leaves_each_pod_a_place(found: list[tuple[str, list[int]]], room: float) -> None:
    cluster = SmallCluster()
    cluster.room["gpu"] = room
    for number, (machine, gpus) in enumerate(found):
        pods = [work(f"p{number}-{at}", gpu) for at, gpu in enumerate(gpus) if at < AWS[machine].gpus]
        cluster.add(f"n{number}", machine, *pods)
    for _ in range(2 * len(found)):
        move = decide_consolidation(cluster.round())
        if move is None:
            return
        plan, _ = move
        assert max(Counter(node.pool for node in plan.nodes).values()) <= room
        before, pods_before = cluster.price(), cluster.pods()
        cluster.take(move)
        assert cluster.price() < before
        assert cluster.pods() == pods_before
        assert cluster.fits()
    raise AssertionError("consolidation does not come to an end")
