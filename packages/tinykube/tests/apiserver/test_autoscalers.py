"""A HorizontalPodAutoscaler in its two versions: nothing that one client wrote is lost by another."""

from __future__ import annotations

V1 = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers"
V2 = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}


async def test_the_first_version_has_the_utilization_of_cpu(api):
    spec = {"scaleTargetRef": TARGET, "maxReplicas": 3, "targetCPUUtilizationPercentage": 70}
    made = await api.create(V1, {"metadata": {"name": "a"}, "spec": spec})
    assert made["spec"] == {**spec, "minReplicas": 1}
    found = await api.get(f"{V2}/a")
    target = {"type": "Utilization", "averageUtilization": 70}
    assert found["apiVersion"] == "autoscaling/v2"
    assert found["spec"]["metrics"] == [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]


async def test_what_the_first_version_cannot_say_goes_with_it(api):
    metrics = [
        {"type": "Resource", "resource": {"name": name, "target": {"type": "Utilization", "averageUtilization": 50}}}
        for name in ("memory", "cpu")
    ]
    spec = {"scaleTargetRef": TARGET, "maxReplicas": 3, "metrics": metrics, "behavior": {"scaleUp": {}}}
    await api.create(V2, {"metadata": {"name": "a"}, "spec": spec})
    first = await api.get(f"{V1}/a")
    assert first["spec"]["targetCPUUtilizationPercentage"] == 50
    first["spec"]["maxReplicas"] = 5
    assert (await api("PUT", f"{V1}/a", first)).status == 200
    found = await api.get(f"{V2}/a")
    assert found["spec"]["maxReplicas"] == 5
    assert sorted(m["resource"]["name"] for m in found["spec"]["metrics"]) == ["cpu", "memory"]
    assert "behavior" in found["spec"]
    assert "annotations" not in found["metadata"]


async def test_the_first_version_is_validated_as_the_second(api):
    answer = await api("POST", V1, {"metadata": {"name": "a"}, "spec": {"scaleTargetRef": TARGET, "maxReplicas": 0}})
    assert answer.status == 422
    assert "spec.maxReplicas: Required value: must be set and greater than 0" in answer.message
    answer = await api("POST", V1, {"metadata": {"name": "a"}, "spec": {"metrics": []}}, fieldValidation="Strict")
    assert 'unknown field "spec.metrics"' in answer.message


async def test_a_watch_of_the_first_version_sees_its_form(api):
    watch = await api.watch(V1)
    spec = {"scaleTargetRef": TARGET, "maxReplicas": 3, "targetCPUUtilizationPercentage": 70}
    await api.create(V2, {"metadata": {"name": "a"}, "spec": {"scaleTargetRef": TARGET, "maxReplicas": 3}})
    await api.create(V1, {"metadata": {"name": "b"}, "spec": spec})
    (_, first), (_, second) = [await watch.next() for _ in "ab"]
    assert (first["apiVersion"], second["spec"]["targetCPUUtilizationPercentage"]) == ("autoscaling/v1", 70)
