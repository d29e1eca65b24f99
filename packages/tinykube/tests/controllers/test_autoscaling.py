"""Autoscalers bring their targets within bounds, and say that they have no metrics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.controllers.autoscaling import autoscale

from .test_deployment import deployment
from .test_statefulset import statefulset

CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}


def autoscaler(least=2, most=4, kind="Deployment", **fields):
    target = {"apiVersion": "apps/v1", "kind": kind, "name": "web"}
    spec = {"minReplicas": least, "maxReplicas": most, "scaleTargetRef": target, "metrics": [CPU], **fields}
    return {"metadata": {"name": "web"}, "spec": spec}


def status(cluster):
    found = cluster.registry.get("horizontalpodautoscalers", "default", "web")["status"]
    return found, {c["type"]: (c["status"], c["reason"]) for c in found["conditions"]}


@pytest.mark.parametrize(("kind", "make"), [("Deployment", deployment), ("StatefulSet", statefulset)])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (3, 3), (9, 4), (0, 0)])
async def test_the_target_comes_within_the_bounds(cluster, kind, make, before, after):
    plural = f"{kind.lower()}s"
    await cluster.create(plural, make(before))
    await cluster.create("horizontalpodautoscalers", autoscaler(kind=kind))
    await cluster.settle()
    assert cluster.registry.get(plural, "default", "web")["spec"]["replicas"] == after
    found, conditions = status(cluster)
    assert found["currentReplicas"] == after
    assert conditions["AbleToScale"] == ("True", "SucceededGetScale")
    assert conditions["ScalingActive"] == ("False", "FailedGetResourceMetric" if after else "ScalingDisabled")
    assert len(cluster.events("SuccessfulRescale")) == (before != after)


async def test_a_target_that_comes_later_or_goes_is_noticed(cluster):
    await cluster.create("horizontalpodautoscalers", autoscaler())
    await cluster.settle()
    assert status(cluster)[1]["AbleToScale"] == ("False", "FailedGetScale")
    await cluster.create("deployments", deployment(1))
    await cluster.settle()
    assert cluster.registry.get("deployments", "default", "web")["spec"]["replicas"] == 2
    await cluster.registry.delete("deployments", "default", "web")
    await cluster.settle()
    assert status(cluster)[1]["AbleToScale"] == ("False", "FailedGetScale")


@given(least=st.integers(1, 9), more=st.integers(0, 9), current=st.integers(0, 30))
def test_one_step_is_enough_for_any_bounds(least, more, current):
    spec = {"minReplicas": least, "maxReplicas": least + more, "metrics": [CPU]}
    step = autoscale(spec, current)
    after = current if step.replicas is None else step.replicas
    assert after == 0 == current or least <= after <= least + more
    assert autoscale(spec, after).replicas is None
