"""A HorizontalPodAutoscaler on a cluster that serves no metrics."""

from __future__ import annotations


def test_an_autoscaler_without_metrics(here):
    here.node("a")
    container = {"name": "c", "image": "busybox"}
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [container], "nodeSelector": {"run": here.suffix}},
    }
    deployment = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    here.made(here.apps("deployments"), {"metadata": {"name": "d"}, "spec": deployment})
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}
    spec = {"minReplicas": 2, "maxReplicas": 4, "scaleTargetRef": target}
    spec["metrics"] = [{"type": "Resource", "resource": cpu}]
    path = here.at("autoscaling/v2", "horizontalpodautoscalers")
    here.made(path, {"metadata": {"name": "h"}, "spec": spec})
    here.until(here.apps("deployments/d"), lambda found: found["spec"]["replicas"] == 2)

    def looked(found):
        return any(c["type"] == "ScalingActive" for c in (found.get("status") or {}).get("conditions") or ())

    found = here.until(f"{path}/h", looked)
    here.see("status", found["status"])
    (event,) = here.until_list(here.core("events"), lambda items: items, fieldSelector="reason=SuccessfulRescale")
    here.see("event", {name: event.get(name) for name in ("message", "type", "source")})
