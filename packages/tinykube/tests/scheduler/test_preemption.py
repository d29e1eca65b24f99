"""Pods that are evicted for a pod of higher priority."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.decide import find, fit_error
from kubekit.scheduling.preemption import WAITING, Budget, Candidate, choose, plan
from kubekit.scheduling.selectors import Selector, equalities


def planned(world, pod, budgets=()):
    return plan(pod, world.cache, find(pod, world.cache), budgets)


def test_the_least_important_victims_go(world):
    for node in ("a", "b"):
        world.node(node)
    world.placed("low", "a", requests={"cpu": "4"}, priority=1)
    world.placed("middle", "b", requests={"cpu": "4"}, priority=5)
    answer = planned(world, world.pod("high", requests={"cpu": "2"}, priority=10))
    chosen = choose(answer.candidates)
    assert (chosen.node, [v.name for v in chosen.victims]) == ("a", ["low"])


def test_no_more_victims_than_needed_and_the_important_stay(world):
    world.node("a")
    for name, priority in (("one", 1), ("two", 2), ("three", 3)):
        world.placed(name, "a", requests={"cpu": "1"}, priority=priority)
    answer = planned(world, world.pod("high", requests={"cpu": "2"}, priority=10))
    assert [v.name for v in answer.candidates[0].victims] == ["one"]


def test_budgets_are_respected_where_possible(world):
    world.node("a")
    world.placed("guarded", "a", labels={"app": "db"}, requests={"cpu": "2"}, priority=1)
    world.placed("free", "a", requests={"cpu": "2"}, priority=1)
    budget = Budget("default", Selector(), 0)
    everything = planned(world, world.pod("high", requests={"cpu": "2"}, priority=10), [budget])
    assert everything.candidates[0].violations == 1
    only_db = Budget("default", Selector(equalities({"app": "db"})), 0)
    answer = planned(world, world.pod("high", requests={"cpu": "2"}, priority=10), [only_db])
    assert [v.name for v in answer.candidates[0].victims] == ["free"]


def test_a_nominated_node_that_was_cordoned_is_not_waited_for(world):
    world.node("a")
    leaving = world.pod("leaving", requests={"cpu": "4"}, priority=1, nodeName="a")
    world.cache.place(msgspec.structs.replace(leaving, terminating=True))
    pod = world.pod("high", requests={"cpu": "2"}, priority=10, status={"nominatedNodeName": "a"})
    assert planned(world, pod).message == WAITING
    world.node("a", unschedulable=True)
    world.node("b")
    world.placed("low", "b", requests={"cpu": "4"}, priority=1)
    assert [one.node for one in planned(world, pod).candidates] == ["b"]


def test_the_message_says_why_nobody_can_give_way(world):
    world.node("a")
    world.node("b", unschedulable=True)
    world.placed("equal", "a", requests={"cpu": "4"}, priority=10)
    pod = world.pod("high", requests={"cpu": "2"}, priority=10)
    found = find(pod, world.cache)
    assert fit_error(found, plan(pod, world.cache, found).message) == (
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable. no new claims to deallocate, "
        "preemption: 0/2 nodes are "
        "available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling."
    )


def test_a_pod_may_renounce_preemption(world):
    world.node("a")
    world.placed("low", "a", requests={"cpu": "4"})
    pod = world.pod("high", requests={"cpu": "2"}, priority=10, preemptionPolicy="Never")
    assert planned(world, pod).message == "not eligible due to preemptionPolicy=Never."


def test_what_a_node_never_has_is_not_worth_preempting_for(world):
    world.node("a")
    world.placed("low", "a", requests={"cpu": "1"})
    answer = planned(world, world.pod("high", requests={"nvidia.com/gpu": "1"}, priority=10))
    assert answer.message == "0/1 nodes are available: 1 Preemption is not helpful for scheduling."


def test_room_promised_to_one_is_not_given_to_another(world):
    world.node("a")
    promised = world.pod("promised", requests={"cpu": "3"}, priority=5)
    world.cache.nominate(promised, "a")
    assert not find(world.pod("other", requests={"cpu": "2"}, priority=5), world.cache).feasible
    assert find(world.pod("higher", requests={"cpu": "2"}, priority=6), world.cache).feasible


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=6), st.integers(1, 4))
def test_a_dry_run_leaves_the_cache_as_it_was_and_its_plan_works(world, pods, wanted):
    world.cache = SchedulerCache()
    world.node("a")
    for index, (priority, cpu) in enumerate(pods):
        world.placed(f"p{index}", "a", requests={"cpu": str(cpu)}, priority=priority)
    node = world.cache.nodes["a"]
    before = (dict(node.requested), dict(node.pods))
    pod = world.pod("high", requests={"cpu": str(wanted)}, priority=3)
    answer = planned(world, pod)
    assert (node.requested, node.pods) == before
    for candidate in answer.candidates:
        assert all(victim.priority < 3 for victim in candidate.victims)
        for victim in candidate.victims:
            world.cache.remove(victim.key)
        assert find(pod, world.cache).feasible


def test_of_equal_candidates_the_youngest_victims_go(world):
    old = world.pod("old", created="2026-01-01T00:00:00Z")
    young = world.pod("young", created="2026-01-02T00:00:00Z")
    assert choose([Candidate("a", (old,)), Candidate("b", (young,))]).node == "b"
