"""Preferences of pods count as long as a node meets them, and never cost a pod its node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.autoscaler.asks import PodAsk, PodReading, asks_of, read_asks, read_pod
from gpuplane.autoscaler.existing import ExistingNode
from gpuplane.autoscaler.nodeclaims import launch_options
from gpuplane.autoscaler.options import PoolLimits
from gpuplane.autoscaler.preferences import MOST_OF_A_KIND, PreferenceRules, preference_rules, preference_steps
from gpuplane.autoscaler.purchase import NodePurchase, decide_as_karpenter, decide_purchase
from gpuplane.autoscaler.settings import read_settings
from kubekit.api.core import Taint
from kubekit.errors import InvalidInput
from kubekit.scheduling.podinfo import NodeFacts, NodeTaint, compile_pod
from packages.gpuplane.tests.autoscaler.worlds import ZONES, options_of, pod, pool, requirement, types_named

ZONE, HOST, TYPE = "topology.kubernetes.io/zone", "kubernetes.io/hostname", "node.kubernetes.io/instance-type"
SOFT = Taint(key="old", effect="PreferNoSchedule")
CHEAP, DEAR = "g4dn.xlarge", "g4dn.2xlarge"


def prefers(*terms: tuple[int, str, str]) -> dict[str, Any]:
    """Preferred node affinity: (weight, label, value)."""
    found = [
        {"weight": weight, "preference": {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}}
        for weight, key, value in terms
    ]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": found}}


def prefers_pods(kind: str, *terms: tuple[int, str, str]) -> dict[str, Any]:
    """Preferred pod affinity or anti-affinity: (weight, app, topology key)."""
    found = [
        {"weight": weight, "podAffinityTerm": {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}}
        for weight, app, key in terms
    ]
    return {kind: {"preferredDuringSchedulingIgnoredDuringExecution": found}}


def anyway(key: str, app: str = "x") -> dict[str, Any]:
    selector = {"matchLabels": {"app": app}}
    return {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}


def several(count: int, **fields: Any) -> list[PodAsk]:
    return read_asks(pod(f"p-{number}", 1, labels={"app": "x"}, **fields) for number in range(count))


def bought(answer: NodePurchase) -> dict[str, int]:
    return dict(Counter(node.option.machine.name for node in answer.nodes))


def zones(answer: NodePurchase) -> list[str]:
    return sorted(node.option.zone for node in answer.nodes)


# -- the order ---------------------------------------------------------------------------------------------------------


def test_preferences_are_given_up_in_karpenters_order_the_heaviest_first() -> None:
    affinity = {
        **prefers((1, ZONE, "a"), (9, ZONE, "b")),
        **prefers_pods("podAffinity", (2, "near", ZONE), (5, "nearest", ZONE)),
        **prefers_pods("podAntiAffinity", (3, "far", HOST)),
    }
    spread = [anyway(ZONE), {**anyway(HOST), "whenUnsatisfiable": "DoNotSchedule"}, anyway(TYPE)]
    info = compile_pod(pod("p", affinity=affinity, topologySpreadConstraints=spread))
    steps = preference_steps(info, PreferenceRules(soft_taints=(NodeTaint("old", "", "PreferNoSchedule"),)))
    assert steps[-1].given_up == (
        f"pod affinity: app In nearest by {ZONE}",
        f"pod affinity: app In near by {ZONE}",
        f"pod anti-affinity: app In far by {HOST}",
        f"node affinity: {ZONE} In b",
        f"node affinity: {ZONE} In a",
        f"topology spread over {ZONE}",
        f"topology spread over {TYPE}",
        "a node without PreferNoSchedule taints",
    )
    assert [len(step.given_up) for step in steps] == list(range(9))
    last = steps[-1].wanted
    assert [one.topology_key for one in last.spread] == [HOST], "what is required stays"
    assert last.affinity.node_preferred == last.affinity.pod_preferred == last.affinity.anti_preferred == ()
    assert [step.avoids for step in steps] == [True] * 8 + [False]


def test_thousands_of_preferences_of_one_pod_are_few_steps() -> None:
    """Any tenant can write them, and in each step the pod is tried on every node."""
    terms = [(1 + at % 99, ZONE, str(at)) for at in range(5000)]
    others = [(1 + at % 99, str(at), ZONE) for at in range(5000)]
    affinity = {**prefers(*terms), **prefers_pods("podAffinity", *others), **prefers_pods("podAntiAffinity", *others)}
    info = compile_pod(pod("p", affinity=affinity, topologySpreadConstraints=[anyway(ZONE)] * 5000))
    steps = preference_steps(info, PreferenceRules())
    assert len(steps) == 1 + 4 * MOST_OF_A_KIND
    assert len(steps[0].wanted.spread) == MOST_OF_A_KIND
    assert min(weight for weight, _ in steps[0].wanted.affinity.pod_preferred) == 99, "the heaviest count"


def test_a_pod_without_preferences_has_nothing_to_give_up() -> None:
    tolerant = pod("p", tolerations=[{"operator": "Exists"}])
    rules = preference_rules(True, [pool("gpu", taints=(SOFT,))])
    assert len(preference_steps(compile_pod(tolerant), rules)) == 1
    assert len(preference_steps(compile_pod(pod("p")), rules)) == 2
    assert len(preference_steps(compile_pod(pod("p")), PreferenceRules())) == 1
    empty = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}}
    assert len(preference_steps(compile_pod(pod("p", affinity=empty)), PreferenceRules())) == 1


# -- nodes -------------------------------------------------------------------------------------------------------------


def test_a_preferred_node_is_bought_though_it_costs_more() -> None:
    asks = several(1, affinity=prefers((1, TYPE, DEAR), (9, ZONE, "b")))
    answer = decide_purchase(asks, options_of(asks, pool()))
    assert (bought(answer), zones(answer)) == ({CHEAP: 1}, ["b"]), "only the heaviest term counts"
    assert not answer.given_up
    asks = several(1, affinity=prefers((9, TYPE, DEAR), (1, ZONE, "b")))
    assert bought(decide_purchase(asks, options_of(asks, pool()))) == {DEAR: 1}


def test_the_next_preference_counts_when_no_node_keeps_the_heaviest() -> None:
    asks = several(2, affinity=prefers((9, ZONE, "nowhere"), (5, TYPE, DEAR)))
    answer = decide_purchase(asks, options_of(asks, pool(shared=True)))
    assert bought(answer) == {DEAR: 1}
    assert set(answer.given_up.values()) == {(f"node affinity: {ZONE} In nowhere",)}
    assert answer.given_up.keys() == {"ml/p-0", "ml/p-1"}


def test_a_label_of_the_pool_takes_the_value_that_pods_prefer() -> None:
    team = [types_named(CHEAP), requirement("team", "Exists")]
    asks = several(1, affinity=prefers((1, "team", "red")))
    (node,) = decide_purchase(asks, options_of(asks, pool("gpu", *team))).nodes
    assert node.option.facts.labels["team"] == "red"


def test_many_pods_with_a_preference_that_no_node_keeps_cost_what_they_cost_without() -> None:
    """More than 200 pods: only the linear program finds this price, so the pods gave up together before it."""
    plain = several(250, cpu="1")
    asks = several(250, cpu="1", affinity=prefers((1, ZONE, "nowhere")))
    wanted, without = (decide_purchase(some, options_of(some, pool())) for some in (asks, plain))
    assert wanted.price == pytest.approx(without.price)
    assert len(wanted.given_up) == 250 and not wanted.waiting


def test_the_launch_keeps_the_preferences_that_were_not_given_up() -> None:
    asks = several(1, affinity=prefers((9, ZONE, "nowhere"), (5, ZONE, "b")))
    (found,) = options_of(asks, pool())
    (node,) = decide_purchase(asks, [found]).nodes
    options = launch_options(node, found, {ask.key: ask for ask in asks}, PoolLimits([found.pool]))
    assert {option.zone for option in options} == {"b"}
    assert len(options) > 1


def test_the_terms_of_required_affinity_are_alternatives_and_none_is_given_up() -> None:
    terms = [{"matchExpressions": [{"key": TYPE, "operator": "In", "values": [name]}]} for name in (DEAR, CHEAP)]
    required = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    asks = several(1, affinity=required)
    answer = decide_purchase(asks, options_of(asks, pool()))
    assert bought(answer) == {CHEAP: 1} and not answer.given_up


# -- other pods --------------------------------------------------------------------------------------------------------


def test_pods_that_prefer_to_be_apart_are_apart_as_long_as_the_limit_of_the_pool_lets_them() -> None:
    asks = several(3, affinity=prefers_pods("podAntiAffinity", (1, "x", HOST)))
    answer = decide_purchase(asks, options_of(asks, pool(shared=True)))
    assert len(answer.nodes) == 3 and not answer.given_up
    limited = decide_purchase(asks, options_of(asks, pool("gpu", types_named(CHEAP), shared=True, limits={"cpu": 8})))
    assert sorted(len(node.pods) for node in limited.nodes) == [1, 2] and not limited.waiting
    assert list(limited.given_up.values()) == [(f"pod anti-affinity: app In x by {HOST}",)]


def test_a_placed_pods_preference_keeps_no_other_pod_away() -> None:
    alone = pod("a", 1, cpu="200m", affinity=prefers_pods("podAntiAffinity", (1, "x", HOST)))
    asks = read_asks([alone, pod("b", 1, labels={"app": "x"})])
    answer = decide_purchase(asks, options_of(asks, pool(shared=True)))
    assert len(answer.nodes) == 1 and not answer.given_up


def test_each_preferred_affinity_counts_by_itself() -> None:
    """No pod has both labels, as the terms of required affinity would ask for."""
    running = tuple(
        compile_pod({**pod(f"r-{app}"), "metadata": {"name": f"r-{app}", "namespace": "ml", "labels": {"app": app}}})
        for app in ("db", "cache")
    )
    labels = {ZONE: "c", HOST: "n1"}
    full = ExistingNode("n1", "gpu", NodeFacts("n1", labels, {"cpu": 0, "pods": 2}), {"pods": 0}, pods=running)
    both = prefers_pods("podAffinity", (5, "db", ZONE), (1, "cache", ZONE))
    asks = several(1, affinity=both)
    answer = decide_purchase(asks, options_of(asks, pool()), [full])
    assert zones(answer) == ["c"] and not answer.given_up
    asks = several(1, affinity=prefers_pods("podAffinity", (5, "nobody", ZONE), (1, "cache", ZONE)))
    answer = decide_purchase(asks, options_of(asks, pool()), [full])
    assert zones(answer) == ["c"]
    assert answer.given_up["ml/p-0"] == (f"pod affinity: app In nobody by {ZONE}",)


def test_the_first_pod_that_prefers_its_like_goes_anywhere_and_the_others_follow() -> None:
    asks = several(4, affinity=prefers_pods("podAffinity", (1, "x", ZONE)))
    answer = decide_purchase(asks, options_of(asks, pool("gpu", types_named(CHEAP))))
    assert len(set(zones(answer))) == 1 and len(answer.nodes) == 4 and not answer.given_up


def test_pods_spread_though_they_need_not() -> None:
    asks = several(6, topologySpreadConstraints=[anyway(ZONE)])
    answer = decide_purchase(asks, options_of(asks, pool(shared=True)))
    assert zones(answer) == sorted(ZONES) and [len(node.pods) for node in answer.nodes] == [2, 2, 2]
    ignored = asks_of([read_pod(pod(f"p-{at}", 1, topologySpreadConstraints=[anyway(ZONE)])) for at in range(6)])
    rules = PreferenceRules(respect=False)
    ignored = asks_of([PodReading(ask.info, ask.request, ask.trouble) for ask in ignored], rules=rules)
    assert all(ask.free and not ask.later for ask in ignored)
    assert len(decide_purchase(ignored, options_of(ignored, pool(shared=True))).nodes) == 1


def test_karpenters_own_benchmark_of_preferences_buys_a_node_for_each_pod_in_the_preferred_zone() -> None:
    affinity = {**prefers((1, ZONE, "b")), **prefers_pods("podAntiAffinity", (10, "x", ZONE), (1, "x", HOST))}
    asks = several(8, affinity=affinity)
    offers = options_of(asks, pool(shared=True))
    for answer in (decide_purchase(asks, offers), decide_as_karpenter(asks, offers)):
        assert zones(answer) == ["b"] * 8
        assert Counter(answer.given_up.values()) == {(f"pod anti-affinity: app In x by {ZONE}",): 7}


# -- taints ------------------------------------------------------------------------------------------------------------


def test_a_soft_taint_is_avoided_until_no_other_node_is_left() -> None:
    tainted = pool("old", types_named(CHEAP), taints=(SOFT,), weight=10)
    clean = pool("new", types_named(DEAR), limits={"cpu": 8})
    rules = preference_rules(True, [tainted, clean])
    asks = read_asks([pod("p-0", 1), pod("p-1", 1)], rules)
    answer = decide_purchase(asks, options_of(asks, tainted, clean))
    assert sorted(node.option.pool.name for node in answer.nodes) == ["new", "old"]
    assert list(answer.given_up.values()) == [("a node without PreferNoSchedule taints",)]
    tolerant = read_asks([pod("p", 1, tolerations=[{"key": "old", "operator": "Exists"}])], rules)
    (node,) = decide_purchase(tolerant, options_of(tolerant, tainted, clean)).nodes
    assert node.option.pool.name == "old" and not tolerant[0].later


# -- any world ---------------------------------------------------------------------------------------------------------

LABELS = st.sampled_from([(ZONE, "a"), (ZONE, "b"), (ZONE, "nowhere"), (TYPE, DEAR), (TYPE, CHEAP)])
TOPOLOGY = st.sampled_from([ZONE, HOST])
APPS = st.sampled_from("xyz")


@st.composite
def kinds(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """Fields of equal pods, and their number."""
    weights = st.integers(1, 100)
    affinity: dict[str, Any] = {}
    if draw(st.booleans()):
        affinity |= prefers(*((draw(weights), *draw(LABELS)) for _ in range(draw(st.integers(1, 3)))))
    for kind in ("podAffinity", "podAntiAffinity"):
        if draw(st.booleans()):
            affinity |= prefers_pods(kind, (draw(weights), draw(APPS), draw(TOPOLOGY)))
    spread = [anyway(draw(TOPOLOGY), draw(APPS))] if draw(st.booleans()) else []
    fields = {"affinity": affinity, "topologySpreadConstraints": spread, "labels": {"app": draw(APPS)}}
    return {**fields, "cpu": draw(st.sampled_from(["500m", "1500m", "3"]))}, draw(st.integers(1, 5))


def without_preferences(spec: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if name not in ("affinity", "topologySpreadConstraints")}


@given(st.lists(kinds(), min_size=1, max_size=4), st.sampled_from([{}, {"cpu": 8}, {"cpu": 20}, {"nodes": 2}]))
@settings(max_examples=40, deadline=None)
def test_in_any_world_preferences_leave_no_more_pods_without_a_node(
    specs: Sequence[tuple[dict[str, Any], int]], limits: dict[str, int]
) -> None:
    def world(strip: bool) -> list[PodAsk]:
        return read_asks(
            pod(f"p-{kind}-{number}", 1, **(without_preferences(fields) if strip else fields))
            for kind, (fields, count) in enumerate(specs)
            for number in range(count)
        )

    asks, plain = world(False), world(True)
    found = pool("gpu", types_named(CHEAP, DEAR), shared=True, limits=limits)
    answer, without = (decide_purchase(some, options_of(some, found)) for some in (asks, plain))
    assert len(answer.waiting) <= len(without.waiting)
    by_key = {ask.key: ask for ask in asks}
    assert sorted([*(key for node in answer.nodes for key in node.pods), *answer.waiting]) == sorted(by_key)
    for node in answer.nodes:
        for key in node.pods:
            kept = by_key[key].relaxed(len(answer.given_up.get(key, ()))).wanted.affinity.node_preferred
            assert not kept or kept[0][1].matches("", node.option.facts.labels), "the heaviest that is left is kept"
    if not limits:
        assert not answer.waiting


def test_the_policy_is_karpenters_setting() -> None:
    cluster = {"CLUSTER_NAME": "demo"}
    assert read_settings(cluster).respect_preferences
    assert not read_settings({**cluster, "PREFERENCE_POLICY": "Ignore"}).respect_preferences
    with pytest.raises(InvalidInput, match="'ignore' is no policy"):
        read_settings({**cluster, "PREFERENCE_POLICY": "ignore"})
