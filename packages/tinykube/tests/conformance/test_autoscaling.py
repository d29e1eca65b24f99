"""HorizontalPodAutoscalers on a cluster without metrics, as a real one is until metrics-server is installed.

The embedded cluster has metrics until its APIService is deleted.
"""

from __future__ import annotations

import pytest

CPU = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}
AVERAGE = {"type": "AverageValue", "averageValue": "10"}
DESCRIBED = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}
MARKED = {"name": "queue", "selector": {"matchLabels": {"a": "b"}}}


METRICS = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io"


def made(here, name="d", replicas=1, **spec):
    assert here.delete(METRICS).status in (200, 404)
    here.node("a")
    container = {"name": "c", "image": "busybox"}
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [container], "nodeSelector": {"run": here.suffix}},
    }
    deployment = {"replicas": replicas, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    here.made(here.apps("deployments"), {"metadata": {"name": "d"}, "spec": deployment})
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    path = here.at("autoscaling/v2", "horizontalpodautoscalers")
    here.made(path, {"metadata": {"name": "h"}, "spec": {"maxReplicas": 4, "scaleTargetRef": target, **spec}})
    return f"{path}/h"


def conditions(found):
    return {c["type"]: c for c in (found.get("status") or {}).get("conditions") or ()}


def told(here, count, **event):
    items = here.until_list(here.core("events"), lambda items: len(items) >= count, **event)
    return sorted([e["reason"], e["type"], e["message"]] for e in items)


def test_an_autoscaler_without_metrics(here):
    path = made(here, minReplicas=2, metrics=[{"type": "Resource", "resource": CPU}])
    here.until(here.apps("deployments/d"), lambda found: found["spec"]["replicas"] == 2)
    found = here.until(path, lambda found: "ScalingActive" in conditions(found))
    here.see("status", found["status"])
    (event,) = here.until_list(here.core("events"), lambda items: items, fieldSelector="reason=SuccessfulRescale")
    here.see("event", {name: event.get(name) for name in ("message", "type", "source")})
    kind = "involvedObject.kind=HorizontalPodAutoscaler,type=Warning"
    here.see("warnings", told(here, 2, fieldSelector=kind))


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("ContainerResource", {**CPU, "container": "c"}),
        ("Resource", {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}),
        ("Pods", {"metric": {"name": "hits"}, "target": AVERAGE}),
        ("Object", {"describedObject": DESCRIBED, "metric": {"name": "hits"}, "target": AVERAGE}),
        ("External", {"metric": MARKED, "target": AVERAGE}),
        ("External", {"metric": {"name": "queue"}, "target": {"type": "Value", "value": "10"}}),
    ],
    ids=["container", "memory", "pods", "object", "external average", "external value"],
)
def test_a_metric_that_is_not_served(here, kind, source):
    path = made(here, metrics=[{"type": kind, kind[0].lower() + kind[1:]: source}])
    found = here.until(path, lambda found: "ScalingActive" in conditions(found))
    here.see("status", found["status"])
    about = "involvedObject.kind=HorizontalPodAutoscaler"
    here.see("warnings", told(here, 2, fieldSelector=about))


def test_a_target_that_is_missing(here):
    path = made(here, "nosuch")
    found = here.until(path, conditions)
    here.see("status", found["status"])
    here.see("defaults", found["spec"])
    here.see("warnings", told(here, 1, fieldSelector="involvedObject.kind=HorizontalPodAutoscaler"))


def test_a_target_of_no_replicas(here):
    path = made(here, replicas=0, behavior={"scaleUp": {"tolerance": "50m"}})
    found = here.until(path, lambda found: "ScalingActive" in conditions(found))
    here.see("status", found["status"])
    here.see("defaults", found["spec"])
