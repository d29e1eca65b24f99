"""Decisions of autoscalers: examples with the numbers of the documentation, and laws that hold for any metric."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubekit.api.durations import format_time, parse_time
from tinykube.controllers.autoscaling.behavior import History, Moment
from tinykube.controllers.autoscaling.decide import autoscale
from tinykube.controllers.autoscaling.metrics import MetricValues, ScaledPods
from tinykube.controllers.autoscaling.replicas import (
    MetricError,
    PodSample,
    Tolerances,
    replicas_by_average,
    replicas_by_utilization,
)
from tinykube.controllers.autoscaling.sources import resource_samples

NOW = 1_800_000_000.0
LONG_AGO = "2020-01-01T00:00:00Z"


def pod(name, *, ready=True, phase="Running", request="1", since=LONG_AGO, started=LONG_AGO, **meta):
    container = {"name": "c", "resources": {"requests": {"cpu": request}}}
    conditions = [{"type": "Ready", "status": str(ready), "lastTransitionTime": since}]
    status = {"phase": phase, "startTime": started, "conditions": conditions}
    return {"metadata": {"name": name, **meta}, "spec": {"containers": [container]}, "status": status}


def at(seconds):
    return format_time(parse_time("1970-01-01T00:00:00Z").fromtimestamp(NOW + seconds, parse_time(LONG_AGO).tzinfo))


def by_percent(pods, samples, target=50, current=None, resource="cpu", container=""):
    return replicas_by_utilization(
        pods,
        {name: PodSample(value, NOW) for name, value in samples.items()},
        target,
        len(pods) if current is None else current,
        resource=resource,
        container=container,
        tolerances=Tolerances(),
        now=NOW,
    )


PODS = [pod("a"), pod("b")]


@pytest.mark.parametrize(
    ("pods", "samples", "replicas"),
    [
        (PODS, {"a": 1000, "b": 1000}, 4),
        (PODS, {"a": 550, "b": 549}, 2),  # 54 percent is within the tolerance
        (PODS, {"a": 250, "b": 240}, 1),
        # A missing pod counts as unused on the way up, as full on the way down.
        ([*PODS, pod("c")], {"a": 1000, "b": 1000}, 4),
        ([*PODS, pod("c")], {"a": 100, "b": 100}, 3),
        # A pod that is not ready yet keeps a target from growing, and does not hold it back from shrinking.
        ([*PODS, pod("c", ready=False, since=at(-5), started=at(-20))], {"a": 1000, "b": 1000, "c": 1}, 4),
        ([*PODS, pod("c", phase="Pending")], {"a": 100, "b": 100}, 1),
        # The sample of a pod that has just become ready is from before.
        ([*PODS, pod("c", since=at(-30), started=at(-50))], {"a": 500, "b": 500, "c": 9000}, 3),
        # Neither counts.
        ([*PODS, pod("c", deletionTimestamp=LONG_AGO)], {"a": 1000, "b": 1000, "c": 9}, 4),
        ([*PODS, pod("c", phase="Failed")], {"a": 1000, "b": 1000, "c": 9}, 4),
    ],
)
def test_the_replicas_by_utilization(pods, samples, replicas):
    assert by_percent(pods, samples).replicas == replicas


def test_the_utilization_is_that_of_all_pods_together():
    found = by_percent([pod("a", request="2"), pod("b", request="500m")], {"a": 1000, "b": 500})
    assert (found.utilization, found.average) == (60, 750)


def test_a_pod_without_a_request_stops_the_utilization():
    bare = pod("a")
    bare["spec"]["containers"][0]["resources"] = {}
    with pytest.raises(MetricError, match="missing request for cpu in container c of Pod a"):
        by_percent([bare], {"a": 1})
    with pytest.raises(MetricError, match="container x not found in Pod a"):
        by_percent([pod("a")], {"a": 1}, container="x")


def test_requests_of_the_pod_count_before_those_of_its_containers():
    whole = pod("a")
    whole["spec"]["resources"] = {"requests": {"cpu": "4"}}
    assert by_percent([whole], {"a": 2000}).utilization == 50
    assert by_percent([whole], {"a": 500}, container="c").utilization == 50


@pytest.mark.parametrize("samples", [{}, {"a": 5}])
def test_pods_that_are_not_ready_give_no_number(samples):
    with pytest.raises(MetricError, match="did not receive metrics for targeted pods"):
        by_percent([pod("a", phase="Pending")], samples)


def test_a_pod_of_which_a_container_has_no_value_has_none():
    item = {"metadata": {"name": "a"}, "timestamp": LONG_AGO, "window": "15.2s"}
    items = [{**item, "containers": [{"name": "c", "usage": {"cpu": "1500000n"}}, {"name": "d", "usage": {}}]}]
    assert resource_samples(items, "cpu", "") == {}
    assert resource_samples(items, "cpu", "c") == {"a": PodSample(2, parse_time(LONG_AGO).timestamp(), 15.2)}


SAMPLES = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 5000), min_size=1)
POLICY = st.fixed_dictionaries(
    {"type": st.sampled_from(["Pods", "Percent"]), "value": st.integers(1, 200), "periodSeconds": st.integers(1, 1800)}
)
RULES = st.fixed_dictionaries(
    {},
    optional={
        "stabilizationWindowSeconds": st.integers(0, 3600),
        "selectPolicy": st.sampled_from(["Max", "Min", "Disabled"]),
        "policies": st.lists(POLICY, min_size=1, max_size=3),
        "tolerance": st.sampled_from(["0", "50m", "0.3"]),
    },
)
BEHAVIOR = st.none() | st.fixed_dictionaries({}, optional={"scaleUp": RULES, "scaleDown": RULES})
MOMENTS = st.lists(st.builds(Moment, st.integers(1, 40), st.floats(NOW - 4000, NOW)), max_size=6).map(tuple)
HISTORY = st.builds(History, MOMENTS, MOMENTS, MOMENTS)


def external(average):
    target = {"type": "AverageValue", "averageValue": average}
    return {"type": "External", "external": {"metric": {"name": "m"}, "target": target}}


def step(current, value, behavior, history, least=1, most=20):
    spec = {"minReplicas": least, "maxReplicas": most, "metrics": [external("10")], "behavior": behavior}
    target = ScaledPods([], current, current, "default")
    return autoscale(spec, target, [MetricValues(values=(value * 1000,))], history, NOW)


@given(SAMPLES, st.sets(st.sampled_from("abcdef")), st.integers(1, 300))
def test_missing_pods_never_turn_a_decision_around(samples, missing, target):
    pods = [pod(name) for name in sorted({*samples, *missing})]
    known = {name: value for name, value in samples.items() if name not in missing}
    if not known:
        return
    alone = by_percent([one for one in pods if one["metadata"]["name"] in known], known, target, len(pods))
    found = by_percent(pods, known, target)
    ratio = (alone.utilization or 0) / target
    assert found.replicas >= len(pods) if ratio > 1 else found.replicas <= len(pods)


@given(SAMPLES, st.integers(1, 3000))
def test_the_average_of_pods_after_scaling_would_meet_the_target(samples, target):
    pods = [pod(name) for name in samples]
    values = {name: PodSample(value, NOW) for name, value in samples.items()}
    found = replicas_by_average(
        pods, values, target, len(pods), resource="memory", tolerances=Tolerances(), now=NOW
    ).replicas
    used = sum(samples.values()) // len(samples) * len(samples)
    assert found == len(pods) or found == math.ceil(used / target) or abs(found - used / target) < 1


@given(st.integers(1, 30), st.integers(0, 400), BEHAVIOR, HISTORY, st.integers(1, 9), st.integers(0, 20))
def test_a_step_ends_within_the_bounds(current, value, behavior, history, least, more):
    found = step(current, value, behavior, history, least, least + more)
    after = current if found.replicas is None else found.replicas
    assert found.desired == after
    assert least <= after <= least + more
    assert [c for c in found.conditions if c[0] == "AbleToScale"][-1][2] in (
        ("SucceededRescale",)
        if found.replicas is not None
        else ("ReadyForNewScale", "ScaleDownStabilized", "ScaleUpStabilized")
    )


@given(st.integers(1, 20), st.integers(0, 400), HISTORY)
def test_without_a_behavior_a_target_at_most_doubles(current, value, history):
    after = step(current, value, None, history).replicas or current
    assert after <= max(2 * current, 4)
    recent = [one.number for one in history.recommended if one.time >= NOW - 300]
    assert not recent or after >= min(max(recent), 2 * current, 20)


@given(st.integers(1, 20), st.integers(0, 400), BEHAVIOR, HISTORY)
def test_a_larger_value_never_asks_for_fewer(current, value, behavior, history):
    lower = step(current, value, behavior, history).desired
    assert step(current, value + 7, behavior, history).desired >= lower


@given(st.integers(1, 20), st.integers(0, 400), HISTORY)
def test_a_disabled_direction_never_moves(current, value, history):
    up = step(current, value, {"scaleUp": {"selectPolicy": "Disabled"}}, History()).desired
    down = step(current, value, {"scaleDown": {"selectPolicy": "Disabled"}}, history).desired
    assert up <= current <= down


@given(st.integers(2, 10), st.integers(1, 5), st.integers(1, 100))
def test_a_policy_bounds_the_change_of_its_whole_period(current, value, seconds):
    policy = {"type": "Pods", "value": value, "periodSeconds": 60}
    behavior = {"scaleUp": {"policies": [policy]}}
    first = step(current, 10_000, behavior, History(), most=100)
    assert first.replicas == current + value
    spec = {"minReplicas": 1, "maxReplicas": 100, "metrics": [external("10")], "behavior": behavior}
    target = ScaledPods([], first.replicas, first.replicas, "default")
    again = autoscale(spec, target, [MetricValues(values=(10_000_000,))], first.history, NOW + seconds)
    assert again.replicas == (None if seconds < 60 else current + 2 * value)


def test_a_metric_that_cannot_be_read_keeps_a_target_from_shrinking():
    spec = {"minReplicas": 1, "maxReplicas": 9, "metrics": [external("10"), external("10")]}
    target = ScaledPods([], 3, 3, "default")
    unread = MetricValues(error="gone")
    shrinking = autoscale(spec, target, [MetricValues(values=(10_000,)), unread], History(), NOW)
    assert (shrinking.replicas, shrinking.desired) == (None, None)
    assert shrinking.warnings[-1][1].startswith("invalid metrics (1 invalid out of 2), first error is: failed to get m")
    growing = autoscale(spec, target, [MetricValues(values=(50_000,)), unread], History(), NOW)
    assert growing.replicas == 5
    assert growing.warnings == (("FailedGetExternalMetric", "unable to get external metric default/m/nil: gone"),)


def test_a_selector_is_spelled_as_go_spells_it():
    metric = external("10")
    metric["external"]["metric"]["selector"] = {
        "matchLabels": {"b": "2", "a": "1"},
        "matchExpressions": [{"key": "k", "operator": "In", "values": ["x", "y"]}],
    }
    spec = {"maxReplicas": 9, "metrics": [metric]}
    found = autoscale(spec, ScaledPods([], 1, 1, "n"), [MetricValues(values=(90_000,))], History(), NOW)
    assert found.reason == (
        "external metric m(&LabelSelector{MatchLabels:map[string]string{a: 1,b: 2,},MatchExpressions:"
        "[]LabelSelectorRequirement{LabelSelectorRequirement{Key:k,Operator:In,Values:[x y],},},}) above target"
    )


@given(least=st.integers(1, 9), more=st.integers(0, 9), current=st.integers(0, 30))
def test_one_step_is_enough_for_any_bounds(least, more, current):
    spec = {"minReplicas": least, "maxReplicas": least + more, "metrics": [external("10")]}
    found = [MetricValues(error="none")] if least <= current <= least + more else []
    one = autoscale(spec, ScaledPods([], current, current, "n"), found, History(), NOW)
    after = current if one.replicas is None else one.replicas
    assert after == 0 == current or least <= after <= least + more
