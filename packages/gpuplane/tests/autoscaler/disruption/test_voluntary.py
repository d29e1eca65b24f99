"""Nodes that the autoscaler removes of its own accord, and nodes that it must leave."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.api.karpenter import PoolDisruption
from gpuplane.autoscaler.disruption.facts import DisruptableNode, DisruptionPlan, PodWeight
from gpuplane.autoscaler.disruption.voluntary import next_ttl, plan_drifted_empty, plan_empty, plan_ttl

NOW = 10_000.0
POOLS = {"p": PoolDisruption(consolidate_after=0.0, policy="WhenEmpty", empty_after=30.0)}
NODE = DisruptableNode("c", "n", "p", initialized=NOW - 100)


def node(claim: str, **more: object) -> DisruptableNode:
    return msgspec.structs.replace(NODE, claim=claim, **more)


def chosen(plan: DisruptionPlan | None) -> list[str]:
    return [one.claim for one in plan.nodes] if plan is not None else []


def test_all_nodes_that_were_empty_for_long_enough_go_together() -> None:
    nodes = [node("a", emptied=NOW - 30), node("b", emptied=NOW - 29), node("c", emptied=NOW - 60), node("d")]

    assert chosen(plan_ttl(nodes, POOLS, {"p": 9}, NOW)) == ["a", "c"]
    assert next_ttl(nodes, POOLS, NOW) == 1


def test_a_pod_that_has_just_come_keeps_a_stamped_node() -> None:
    assert not chosen(plan_ttl([node("a", emptied=NOW - 60, pods=(PodWeight("x"),))], POOLS, {"p": 9}, NOW))


def test_empty_nodes_go_by_policy_when_consolidatable() -> None:
    nodes = [
        node("a", consolidatable=True),
        node("b"),
        node("c", consolidatable=True, held="do-not-consolidate"),
        node("d", consolidatable=True, pods=(PodWeight("x"),)),
        node("e", consolidatable=True, pods=(PodWeight("cheap", cost=-1.0),)),
    ]

    plan = plan_empty(nodes, POOLS, {"p": 9})

    assert chosen(plan) == ["a", "e"]
    assert plan is not None
    assert plan.validate
    assert not chosen(plan_empty(nodes, {"p": PoolDisruption(consolidate_after=0.0)}, {"p": 9}))


def test_drifted_empty_nodes_go_first_come_first_served() -> None:
    nodes = [
        node("a", drift="AMIDrift", drifted=3.0),
        node("b", drift="NodePoolDrifted", drifted=1.0),
        node("c", drift="AMIDrift", drifted=2.0, pods=(PodWeight("x"),)),
    ]

    assert chosen(plan_drifted_empty(nodes, {"p": 1})) == ["b"]
    assert chosen(plan_drifted_empty(nodes, {"p": 9})) == ["b", "a"]


flags = st.booleans()
some_nodes = st.lists(
    st.builds(
        DisruptableNode,
        claim=st.uuids().map(str),
        node=st.just("n"),
        pool=st.sampled_from(["p", "q", "gone"]),
        initialized=st.none() | st.just(NOW - 100),
        away=flags,
        stays=st.sampled_from(["", "do-not-disrupt"]),
        stays_for_pods=st.sampled_from(["", "a budget"]),
        held=st.sampled_from(["", "do-not-consolidate"]),
        bounded=flags,
        pods=st.sampled_from([(), (PodWeight("x"),)]),
        consolidatable=flags,
        emptied=st.none() | st.just(NOW - 31),
        drift=st.sampled_from(["", "AMIDrift"]),
    ),
    max_size=12,
)
rooms = st.fixed_dictionaries({"p": st.integers(0, 4), "q": st.sampled_from([0, 1, float("inf")])})


@given(some_nodes, rooms)
def test_no_plan_exceeds_its_room_or_takes_a_node_that_stays(
    nodes: list[DisruptableNode], room: dict[str, float]
) -> None:
    pools = {"p": POOLS["p"], "q": POOLS["p"]}
    for plan in (plan_ttl(nodes, pools, room, NOW), plan_empty(nodes, pools, room), plan_drifted_empty(nodes, room)):
        if plan is None:
            continue
        assert all(count <= room.get(pool, 0) for pool, count in Counter(one.pool for one in plan.nodes).items())
        for one in plan.nodes:
            assert one.initialized is not None
            assert not one.away
            assert not one.stays
            assert not one.stays_for_pods or one.bounded
