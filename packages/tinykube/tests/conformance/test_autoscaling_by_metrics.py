"""HorizontalPodAutoscalers that follow an adapter of metrics, an API server behind the cluster's own."""

from __future__ import annotations

import pytest

from packages.tinykube.tests.conformance.adapter import serving

SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
GROUPS = (("custom.metrics.k8s.io", "v1beta2"), ("external.metrics.k8s.io", "v1beta1"))
SELECTOR = {"matchLabels": {"queue": "jobs"}}
OBJECT = {"describedObject": {"apiVersion": "v1", "kind": "Service", "name": "adapter"}, "metric": {"name": "hits"}}


def external(name, selector=None, **target):
    metric = {"name": name, **({"selector": selector} if selector else {})}
    return {"type": "External", "external": {"metric": metric, "target": target}}


def average(name, value="10", selector=None):
    return external(name, selector, type="AverageValue", averageValue=value)


# By name: replicas before and after, metrics, and the rest of the spec.
CASES = {
    "pods": (
        *(2, 5),
        [
            {
                "type": "Pods",
                "pods": {"metric": {"name": "hits"}, "target": {"type": "AverageValue", "averageValue": "10"}},
            }
        ],
        {},
    ),
    "object": (
        2,
        4,
        [{"type": "Object", "object": {**OBJECT, "target": {"type": "Value", "value": "10"}}}],
        {"maxReplicas": 4},
    ),
    "average": (3, 5, [average("five", selector=SELECTOR)], {}),
    "slow": (
        *(2, 3),
        [average("many")],
        {"behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 600}]}}},
    ),
    "tolerant": (2, 2, [average("three")], {"behavior": {"scaleUp": {"tolerance": "0.9"}}}),
    "held": (3, 3, [average("one")], {}),
    "shrinking": (3, 1, [average("one")], {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}),
    "mixed": (2, 4, [average("four"), average("nosuch")], {}),
    "unread": (2, 2, [average("one"), average("nosuch")], {}),
}


@pytest.mark.alone
def test_replicas_follow_the_metrics(here, tmp_path):
    here.node("a")
    with serving(tmp_path) as adapter:
        adapter.external = {"five": ["30", "18"], "many": ["500"], "three": ["30"], "one": ["10"], "four": ["38"]}
        adapter.custom["services/adapter/hits"] = [("adapter", "25")]
        # A real API server asks addresses of Services that no proxy serves here; a name it resolves itself.
        service = {"type": "ExternalName", "externalName": "localhost"}
        here.made(here.core("services"), {"metadata": {"name": "adapter"}, "spec": service})
        try:
            for group, version in GROUPS:
                serves(here, group, version, adapter.port)
            for name, case in CASES.items():
                pods = make(here, name, *case)
                if name == "pods":
                    adapter.custom["pods/*/hits"] = [(pod["metadata"]["name"], "25") for pod in pods]
                follow(here, name, *case)
            for name, case in CASES.items():
                see(here, name, case[1])
        finally:
            for group, version in GROUPS:
                here.delete(f"{SERVICES}/{version}.{group}")


def serves(here, group, version, port):
    spec = {"group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 100}
    spec |= {"service": {"namespace": here.namespace, "name": "adapter", "port": port}, "insecureSkipTLSVerify": True}
    here.made(SERVICES, {"metadata": {"name": f"{version}.{group}"}, "spec": spec})

    def available(found):
        conditions = (found.get("status") or {}).get("conditions") or ()
        return any(one["type"] == "Available" and one["status"] == "True" for one in conditions)

    here.until(f"{SERVICES}/{version}.{group}", available)


def make(here, name, before, after, metrics, spec):
    labels = {"case": name}
    pod = {"containers": [{"name": "c", "image": "busybox"}], "nodeSelector": {"run": here.suffix}}
    template = {"metadata": {"labels": labels}, "spec": pod}
    deployment = {"replicas": before, "selector": {"matchLabels": labels}, "template": template}
    here.made(here.apps("deployments"), {"metadata": {"name": name}, "spec": deployment})
    return running(here, f"case={name}", before)


def follow(here, name, before, after, metrics, spec):
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    whole = {"maxReplicas": 9, "scaleTargetRef": target, "metrics": metrics, **spec}
    here.made(here.at("autoscaling/v2", "horizontalpodautoscalers"), {"metadata": {"name": name}, "spec": whole})


def running(here, labels, count):
    def ready(items):
        found = [
            pod
            for pod in items
            if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or ())
        ]
        return found if len(found) >= count else []

    return here.until_list(here.core("pods"), ready, labelSelector=labels)


def see(here, name, after):
    """Wait until an autoscaler has done what it does, and look at what it says."""

    def settled(found):
        status = found.get("status") or {}
        conditions = {one["type"]: one["reason"] for one in status.get("conditions") or ()}
        if name == "unread":
            return conditions.get("ScalingActive") == "FailedGetExternalMetric"
        able = conditions.get("AbleToScale") in ("ReadyForNewScale", "ScaleDownStabilized")
        return able and status.get("currentReplicas") == status.get("desiredReplicas") == after

    found = here.until(f"{here.at('autoscaling/v2', 'horizontalpodautoscalers')}/{name}", settled)
    here.see(f"{name}: status", found["status"])
    about = f"involvedObject.kind=HorizontalPodAutoscaler,involvedObject.name={name}"
    events = here.until_list(here.core("events"), lambda items: True, fieldSelector=about)
    seen = {(one["reason"], one["type"], one["message"]) for one in events if one["reason"] != "FailedUpdateStatus"}
    here.see(f"{name}: events", sorted([list(one) for one in seen]))
