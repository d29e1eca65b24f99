"""The choice among the feasible nodes."""

from __future__ import annotations

import pytest

from kubekit.scheduling.decide import best, enough, find
from kubekit.scheduling.scores import balanced, least_allocated, normalised, totals

GIB = 1024**3


def choice(world, pod):
    nodes = find(pod, world.cache).feasible
    return best(nodes, totals(pod, world.cache, nodes)).name


def preferred(kind, weight, rule):
    return {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": weight, **rule}]}}


def test_the_emptier_node_wins(world):
    world.node("a")
    world.node("b")
    world.placed("one", "a", requests={"cpu": "2", "memory": "4Gi"})
    assert choice(world, world.pod("p", requests={"cpu": "1", "memory": "2Gi"})) == "b"


def test_pods_without_requests_count_as_something(world):
    world.node("a")
    world.node("b")
    world.placed("one", "a")
    assert choice(world, world.pod("p")) == "b"


def test_even_use_of_cpu_and_memory_is_better():
    assert least_allocated((2000, 4 * GIB), (4000, 8 * GIB)) == 50
    assert balanced((2000, 4 * GIB), (4000, 8 * GIB)) == 100
    assert balanced((4000, 0), (4000, 8 * GIB)) == 50
    assert least_allocated((1, 1), (0, 0)) == 0


def test_taints_that_only_prefer_push_away(world):
    world.node("a", taints=[{"key": "k", "effect": "PreferNoSchedule"}])
    world.node("b")
    world.placed("one", "b", requests={"cpu": "1", "memory": "1Gi"})
    assert choice(world, world.pod("p")) == "b"
    tolerant = world.pod("p", tolerations=[{"key": "k", "operator": "Exists"}])
    assert choice(world, tolerant) == "a"


def test_preferred_node_affinity_pulls(world):
    world.node("a")
    world.node("b", labels={"disk": "ssd"})
    world.placed("one", "b", requests={"cpu": "1", "memory": "1Gi"})
    expression = {"key": "disk", "operator": "In", "values": ["ssd"]}
    rule = preferred("nodeAffinity", 100, {"preference": {"matchExpressions": [expression]}})
    assert choice(world, world.pod("p", affinity=rule)) == "b"


@pytest.mark.parametrize(("kind", "expected"), [("podAffinity", "b"), ("podAntiAffinity", "a")])
def test_preferred_company(world, kind, expected):
    world.node("a")
    world.node("b")
    world.placed("a-filler", "a", requests={"cpu": "500m", "memory": "1Gi"})
    world.placed("friend", "b", labels={"app": "web"}, requests={"cpu": "500m", "memory": "1Gi"})
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
    assert choice(world, world.pod("p", affinity=preferred(kind, 100, {"podAffinityTerm": term}))) == expected


def test_placed_pods_wishes_count_too(world):
    world.node("a")
    world.node("b")
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
    wish = preferred("podAntiAffinity", 100, {"podAffinityTerm": term})
    world.placed("shy", "a", affinity=wish)
    world.placed("other", "b", requests={"cpu": "500m", "memory": "1Gi"})
    assert choice(world, world.pod("p", labels={"app": "web"})) == "b"


def test_soft_spread_prefers_the_emptier_domain(world):
    world.node("a", labels={"zone": "x"})
    world.node("b", labels={"zone": "y"})
    world.node("c")
    web = {"labels": {"app": "web"}}
    world.placed("one", "a", **web)
    world.placed("filler", "b", requests={"cpu": "500m", "memory": "1Gi"})
    constraint = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    assert choice(world, world.pod("two", **web, topologySpreadConstraints=[constraint])) == "b"


def test_scores_are_brought_to_a_hundred():
    assert normalised([0, 5, 10]) == [0, 50, 100]
    assert normalised([0, 5, 10], reverse=True) == [100, 50, 0]
    assert normalised([0, 0]) == [0, 0]
    assert normalised([0, 0], reverse=True) == [100, 100]


def test_of_many_nodes_only_enough_are_looked_at(world):
    assert enough(50) == 50
    assert enough(1000) == 420
    assert enough(5000) == 500
    for number in range(300):
        world.node(f"n{number}")
    first = find(world.pod("p"), world.cache)
    assert len(first.feasible) == enough(300) == 144
    second = find(world.pod("q"), world.cache, start=first.next_start)
    assert {n.name for n in first.feasible} & {n.name for n in second.feasible} == set()
    everywhere = find(world.pod("r"), world.cache, percent=100)
    assert len(everywhere.feasible) == 300
