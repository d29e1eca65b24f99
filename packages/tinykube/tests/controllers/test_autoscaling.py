"""Autoscalers in a cluster without metrics, and with metrics APIs that another API server serves."""

from __future__ import annotations

import pytest

from kubekit.api.durations import parse_time
from tinykube.apiserver.asgi import json_response

from .test_deployment import deployment
from .test_statefulset import statefulset

CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}
SYNC = 16.0


def autoscaler(least=2, most=4, kind="Deployment", name="web", **fields):
    target = {"apiVersion": "apps/v1", "kind": kind, "name": "web"}
    spec = {"minReplicas": least, "maxReplicas": most, "scaleTargetRef": target, "metrics": [CPU], **fields}
    return {"metadata": {"name": name}, "spec": spec}


def status(cluster, name="web"):
    found = cluster.registry.get("horizontalpodautoscalers", "default", name)["status"]
    return found, {c["type"]: (c["status"], c["reason"]) for c in found["conditions"]}


def replicas(cluster):
    return cluster.registry.get("deployments", "default", "web")["spec"]["replicas"]


@pytest.mark.parametrize(("kind", "make"), [("Deployment", deployment), ("StatefulSet", statefulset)])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (3, 3), (9, 4), (0, 0)])
async def test_the_target_comes_within_the_bounds(cluster, kind, make, before, after):
    plural = f"{kind.lower()}s"
    await cluster.create(plural, make(before))
    await cluster.create("horizontalpodautoscalers", autoscaler(kind=kind))
    await cluster.settle(2 * SYNC)
    assert cluster.registry.get(plural, "default", "web")["spec"]["replicas"] == after
    found, conditions = status(cluster)
    assert found.get("currentReplicas", 0) == after
    assert conditions["AbleToScale"] == ("True", "SucceededGetScale")
    assert conditions["ScalingActive"] == ("False", "FailedGetResourceMetric" if after else "ScalingDisabled")
    assert len(cluster.events("SuccessfulRescale")) == (before != after)


async def test_an_autoscaler_is_looked_at_every_fifteen_seconds(cluster):
    await cluster.create("deployments", deployment(1))
    await cluster.create("horizontalpodautoscalers", autoscaler())
    await cluster.settle(14.0)
    assert replicas(cluster) == 1
    await cluster.settle(2.0)
    assert replicas(cluster) == 2


async def test_a_target_that_comes_later_or_goes_is_noticed(cluster):
    await cluster.create("horizontalpodautoscalers", autoscaler())
    await cluster.settle(SYNC)
    assert status(cluster)[1]["AbleToScale"] == ("False", "FailedGetScale")
    await cluster.create("deployments", deployment(1))
    await cluster.settle(SYNC)
    assert replicas(cluster) == 2
    await cluster.registry.delete("deployments", "default", "web")
    await cluster.settle(SYNC)
    assert status(cluster)[1]["AbleToScale"] == ("False", "FailedGetScale")
    (event,) = cluster.events("FailedGetScale")
    assert (event["type"], event["message"]) == ("Warning", 'deployments.apps "web" not found')


async def test_without_a_metrics_api_its_words_are_those_of_a_real_cluster(cluster):
    await cluster.create("deployments", deployment(2))
    await cluster.create("horizontalpodautoscalers", autoscaler())
    await cluster.settle(SYNC)
    (event,) = cluster.events("FailedComputeMetricsReplicas")
    why = (
        "unable to get metrics for resource cpu: unable to fetch metrics from resource metrics API: "
        "the server could not find the requested resource (get pods.metrics.k8s.io)"
    )
    assert event["message"] == (
        "invalid metrics (1 invalid out of 1), first error is: "
        f"failed to get cpu resource metric value: failed to get cpu utilization: {why}"
    )
    (event,) = cluster.events("FailedGetResourceMetric")
    assert event["message"] == f"failed to get cpu utilization: {why}"


async def test_two_autoscalers_of_one_target_stop_both(cluster):
    await cluster.create("deployments", deployment(2))
    for name in ("web", "other"):
        await cluster.create("horizontalpodautoscalers", autoscaler(name=name))
    await cluster.settle(3 * SYNC)
    for name in ("web", "other"):
        assert status(cluster, name)[1]["ScalingActive"] == ("False", "AmbiguousSelector")
    assert (
        "are controlled by multiple HPAs: [default/other default/web]"
        in cluster.events("AmbiguousSelector")[0]["message"]
    )


class Adapter:
    """An API server of metrics next to this one, such as prometheus-adapter: what it has, and what it was asked."""

    def __init__(self, registry):
        self.values = {}
        self.asked = []
        registry.hooks.pages.append(self.page)

    async def page(self, request):
        if request.path == "/apis":
            group, version = "custom.metrics.k8s.io", "custom.metrics.k8s.io/v1beta2"
            found = {"groupVersion": version, "version": "v1beta2"}
            return json_response({"groups": [{"name": group, "versions": [found], "preferredVersion": found}]})
        if ".metrics.k8s.io/" not in request.path or request.path.split("/")[2] == "metrics.k8s.io":
            return None
        self.asked.append((request.path, request.query))
        items = self.values.get(request.path)
        if items is None:
            return json_response({"kind": "Status", "message": "no such metric here", "reason": "NotFound"}, 404)
        return json_response({"items": items})


async def running(cluster, count):
    await cluster.create("deployments", deployment(count))
    await cluster.settle(1.0)
    pods = cluster.pods()
    assert len(pods) == count
    await cluster.run_pods(*pods)
    return [pod["metadata"]["name"] for pod in pods]


async def test_a_deployment_follows_a_metric_of_its_pods(cluster):
    """As users of prometheus-adapter scale by what their GPUs do."""
    adapter = Adapter(cluster.registry)
    names = await running(cluster, 2)
    metric = {"name": "DCGM_FI_DEV_GPU_UTIL", "selector": {"matchLabels": {"gpu": "a"}}}
    spec = {"type": "Pods", "pods": {"metric": metric, "target": {"type": "AverageValue", "averageValue": "40"}}}
    path = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/DCGM_FI_DEV_GPU_UTIL"
    adapter.values[path] = [{"describedObject": {"name": name}, "value": "80"} for name in names]
    await cluster.create("horizontalpodautoscalers", autoscaler(least=1, most=9, metrics=[spec]))
    await cluster.settle(SYNC)
    assert replicas(cluster) == 4
    assert adapter.asked[0][1]["metricLabelSelector"] == "gpu=a"
    assert "labelSelector" in adapter.asked[0][1]
    found, conditions = status(cluster)
    assert found["currentMetrics"] == [{"type": "Pods", "pods": {"metric": metric, "current": {"averageValue": "80"}}}]
    assert conditions["ScalingActive"] == ("True", "ValidMetricFound")
    (event,) = cluster.events("SuccessfulRescale")
    assert event["message"] == "New size: 4; reason: pods metric DCGM_FI_DEV_GPU_UTIL above target"


async def test_a_target_shrinks_only_after_five_minutes(cluster):
    adapter = Adapter(cluster.registry)
    await running(cluster, 4)
    target = {"type": "AverageValue", "averageValue": "10"}
    spec = {"type": "External", "external": {"metric": {"name": "queue"}, "target": target}}
    path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/queue"
    adapter.values[path] = [{"value": "30"}, {"value": "10"}]
    await cluster.create("horizontalpodautoscalers", autoscaler(least=1, most=9, metrics=[spec]))
    await cluster.settle(SYNC)
    adapter.values[path] = [{"value": "20"}]
    await cluster.settle(200.0)
    assert replicas(cluster) == 4
    assert status(cluster)[1]["AbleToScale"] == ("True", "ScaleDownStabilized")
    await cluster.settle(150.0)
    assert replicas(cluster) == 2
    (event,) = cluster.events("SuccessfulRescale")
    assert event["message"] == "New size: 2; reason: All metrics below target"


async def test_a_metric_of_an_object_counts_for_all_pods(cluster):
    adapter = Adapter(cluster.registry)
    await running(cluster, 2)
    described = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    source = {"describedObject": described, "metric": {"name": "hits"}, "target": {"type": "Value", "value": "100"}}
    path = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/deployments.apps/web/hits"
    adapter.values[path] = [{"value": "150500m"}]
    metrics = [{"type": "Object", "object": source}]
    await cluster.create("horizontalpodautoscalers", autoscaler(least=1, most=9, metrics=metrics))
    await cluster.settle(SYNC)
    assert replicas(cluster) == 4  # 1.505 times two pods, rounded up
    assert status(cluster)[0]["currentMetrics"][0]["object"]["current"] == {"value": "150500m"}


@pytest.mark.parametrize("value", ["lots", None, {"a": 1}])
async def test_an_adapter_that_answers_wrongly_scales_nothing(cluster, value):
    adapter = Adapter(cluster.registry)
    await running(cluster, 2)
    target = {"type": "Value", "value": "10"}
    spec = {"type": "External", "external": {"metric": {"name": "queue"}, "target": target}}
    adapter.values["/apis/external.metrics.k8s.io/v1beta1/namespaces/default/queue"] = [{"value": value}]
    await cluster.create("horizontalpodautoscalers", autoscaler(most=9, metrics=[spec]))
    await cluster.settle(SYNC)
    assert replicas(cluster) == 2
    assert status(cluster)[1]["ScalingActive"] == ("False", "FailedGetExternalMetric")


async def test_a_metric_that_an_adapter_does_not_have_is_named(cluster):
    Adapter(cluster.registry)
    await running(cluster, 2)
    target = {"type": "AverageValue", "averageValue": "10"}
    spec = {"type": "External", "external": {"metric": {"name": "queue"}, "target": target}}
    await cluster.create("horizontalpodautoscalers", autoscaler(most=9, metrics=[spec]))
    await cluster.settle(SYNC)
    found, _ = status(cluster)
    message = next(c["message"] for c in found["conditions"] if c["type"] == "ScalingActive")
    assert message == (
        "the HPA was unable to compute the replica count: unable to get external metric default/queue/nil: "
        "unable to fetch metrics from external metrics API: no such metric here"
    )
    assert parse_time(found["conditions"][0]["lastTransitionTime"])
